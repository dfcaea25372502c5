// Serves this directory, and MQTT.js from its npm package, on http://127.0.0.1:PORT.
//   usage: npm install mqtt && node serve.mjs [PORT]     port 8080 by default; 0 selects any free one
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const files = {
    '/': [() => join(here, 'index.html'), 'text/html'],
    '/mqtt.min.js': [() => createRequire(import.meta.url).resolve('mqtt/dist/mqtt.min'), 'text/javascript'],
};

const server = createServer(async (request, response) => {
    const file = files[new URL(request.url, 'http://localhost').pathname];
    if (!file) return response.writeHead(404).end();
    try {
        const text = await readFile(file[0]());
        response.writeHead(200, { 'Content-Type': file[1] }).end(text);
    } catch (error) {
        response.writeHead(500).end(error.message);
    }
});
server.listen(Number(process.argv[2] ?? 8080), '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/`));
