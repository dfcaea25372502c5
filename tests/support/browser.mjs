// Headless Chromium, controlled over a pipe: its own protocol needs no library. CHROMIUM=PROGRAM, by default chromium.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export function startBrowser() {
    const profile = mkdtempSync(join(tmpdir(), 'tenbin-browser-'));
    const browser = spawn(process.env.CHROMIUM ?? 'chromium', [
        '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars', '--no-first-run',
        '--disable-background-networking', '--disable-component-update', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1',
        '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank',
    ], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    browser.on('error', (error) => { console.error(`cannot start Chromium: ${error.message}`); process.exit(1); });
    const [waiting, listeners] = [new Map(), new Set()];
    let [next, rest] = [1, ''];
    browser.stdio[4].setEncoding('utf8').on('data', (text) => {
        const messages = (rest + text).split('\0');
        rest = messages.pop();
        for (const message of messages.map((text) => JSON.parse(text))) {
            if (message.id) waiting.get(message.id)(message);
            else listeners.forEach((listener) => listener(message));
        }
    });
    const ask = (method, params = {}, sessionId) => new Promise((resolve, reject) => {
        const id = next++;
        waiting.set(id, ({ result, error }) => { waiting.delete(id); error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result); });
        browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
    const end = () => new Promise((resolve) => {
        browser.on('exit', () => {
            // Its last processes may still write there.
            try { rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }); } catch {}
            resolve();
        });
        browser.kill();
    });
    return { ask, listeners, end };
}
