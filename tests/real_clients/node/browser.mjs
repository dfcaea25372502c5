// Opens a page in headless Chromium and prints each new value of a topic: node browser.mjs SERVER-SCRIPT BROKER-URL TOPIC.
// It ends when its input does. SERVER-SCRIPT serves the page; the certificate of the broker is not checked.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [serverScript, broker, topic] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), 'tenbin-browser-'));
// Ends with this process, however that ends: its input is a pipe from here, as Chromium's commands are.
const guarded = 'process.stdin.on("end", () => process.exit()).resume(); import(process.argv[1]);';
const server = spawn('node', ['-e', guarded, serverScript, '0'], { stdio: ['pipe', 'pipe', 'inherit'] });
const browser = spawn(process.env.CHROMIUM ?? 'chromium', [
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--ignore-certificate-errors',
    '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank',
], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });

const end = (status, text) => {
    if (text) console.error(text);
    server.kill();
    browser.on('exit', () => {
        // Its last processes may still write there.
        try { rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }); } catch {}
        process.exit(status);
    });
    browser.kill();
};
browser.on('error', (error) => { console.error(`cannot start Chromium: ${error.message}`); server.kill(); process.exit(1); });
process.stdin.on('end', () => end(0)).resume();

const waiting = new Map();
let [next, rest] = [1, ''];
const ask = (method, params = {}, sessionId) => new Promise((resolve, reject) => {
    const id = next++;
    waiting.set(id, ({ result, error }) => (error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result)));
    browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
});
browser.stdio[4].setEncoding('utf8').on('data', (text) => {
    const messages = (rest + text).split('\0');
    rest = messages.pop();
    for (const message of messages.map((text) => JSON.parse(text))) {
        if (message.id) waiting.get(message.id)?.(message);
        else if (message.method === 'Runtime.bindingCalled') console.log(message.params.payload);
        else if (message.method === 'Runtime.exceptionThrown') end(1, JSON.stringify(message.params.exceptionDetails));
        else if (message.method === 'Log.entryAdded') console.error(message.params.entry.text);
    }
});

// Runs in the page.
function watch(topic) {
    let last = '';
    const look = () => {
        const cell = [...document.querySelectorAll('tr')].find((row) => row.dataset.topic === topic)?.cells[1];
        if (cell && cell.textContent !== last) value(last = cell.textContent);
    };
    new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
}

try {
    const page = await new Promise((resolve) => server.stdout.setEncoding('utf8').on('data', (line) => resolve(line.trim())));
    const { targetId } = await ask('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await ask('Target.attachToTarget', { targetId, flatten: true });
    for (const domain of ['Log', 'Page', 'Runtime']) await ask(`${domain}.enable`, {}, sessionId);
    await ask('Runtime.addBinding', { name: 'value' }, sessionId);
    await ask('Page.addScriptToEvaluateOnNewDocument', { source: `(${watch})(${JSON.stringify(topic)})` }, sessionId);
    await ask('Page.navigate', { url: `${page}?broker=${encodeURIComponent(broker)}` }, sessionId);
} catch (error) {
    end(1, error.message);
}
