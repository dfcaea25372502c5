// Opens report.html of each directory in headless Chromium, without a network, light and dark, wide and as on a
// telephone, and fails on unreadable text, missing parts, misleading marks and network requests.
//   usage: node .ci/report_check.mjs [--shots DIR] DIR…     CHROMIUM=PROGRAM, by default chromium
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const words = process.argv.slice(2);
const shots = words[0] === '--shots' ? words.splice(0, 2)[1] : null;
if (shots) mkdirSync(shots, { recursive: true });

// One browser, controlled over a pipe: its own protocol needs no library.
const profile = mkdtempSync(join(tmpdir(), 'tenbin-report-'));
const browser = spawn(process.env.CHROMIUM ?? 'chromium', [
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--host-resolver-rules=MAP * ~NOTFOUND',
    '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank',
], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
browser.on('error', (error) => { console.error(`cannot start Chromium: ${error.message}`); process.exit(1); });

const waiting = new Map();
const listeners = new Set();
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
    waiting.set(id, ({ result, error }) => (error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result)));
    browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
});

// Runs in the page and measures everything as drawn.
function faultsOfPage() {
    const faults = [];
    const seen = (element) => element.getClientRects().length > 0;
    if (document.documentElement.scrollWidth > window.innerWidth + 1) faults.push('the page is wider than the screen');
    for (const svg of [...document.querySelectorAll('svg')].filter(seen)) {
        const name = svg.closest('figure')?.id ?? 'figure';
        const frame = svg.getBoundingClientRect();
        const texts = [...svg.querySelectorAll('text')].map((text) => ({ text: text.textContent, box: text.getBoundingClientRect() }));
        for (const { text, box } of texts) {
            if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
                faults.push(`${name}: "${text}" is cut off`);
        }
        texts.forEach((a, index) => texts.slice(index + 1).forEach((b) => {
            const width = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
            const height = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
            // Boxes of letters have empty space above and below.
            if (width > 1 && height > 4) faults.push(`${name}: "${a.text}" and "${b.text}" overlap`);
        }));
        const size = texts.length ? parseFloat(getComputedStyle(svg.querySelector('text')).fontSize) * frame.width / svg.viewBox.baseVal.width : 13;
        if (size < 10) faults.push(`${name}: letters of ${size.toFixed(1)} pixels`);
    }
    // Contrast of text and background: a ratio of 4.5 is readable.
    const rgb = (text) => text.match(/[\d.]+/g).map(Number);
    const light = (colour) => colour.slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const colour = rgb(getComputedStyle(e).backgroundColor);
            if (colour.length < 4 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    // The parts of every page, and marks that may not stand beside each other.
    if (document.querySelector('main')) {
        const text = (selector) => document.querySelector(selector)?.textContent.trim() ?? '';
        if (!text('h1')) faults.push('no headline');
        if (!/^\d{4}-\d\d-\d\d .* tenbin \d+\.\d+\.\d+ · ./.test(text('header .note'))) faults.push(`no date, version and machine: ${text('header .note')}`);
        if (!text('header pre')) faults.push('no command line');
        const sections = [...document.querySelectorAll('h2')].map((title) => `#${title.id}`);
        const links = [...document.querySelectorAll('nav a')].map((link) => link.getAttribute('href'));
        if (sections.length === 0 || sections.join() !== links.join()) faults.push(`contents ${links} instead of ${sections}`);
        if (document.querySelector('.checks .bad') && document.querySelector('.banner.good')) faults.push('a failed assertion under a green tick');
        if (document.querySelectorAll('.banner').length === 0) faults.push('no verdict');
        const tint = (element) => getComputedStyle(element).backgroundColor;
        const yellow = document.querySelector('.banner.warning');
        if (yellow && [...document.querySelectorAll('.banner.good, .banner.bad')].some((other) => tint(other) === tint(yellow))) faults.push('a warning that is not yellow');
    }
    // Values that differ by more than 20 × need a logarithmic axis.
    for (const svg of [...document.querySelectorAll('svg')].filter(seen)) {
        const values = [...svg.querySelectorAll('text.h')].map((label) => parseFloat(label.textContent.replaceAll(',', ''))).filter((value) => value > 0);
        const isLog = [...svg.querySelectorAll('text')].some((text) => text.textContent.endsWith('(log scale)'));
        if (values.length > 0 && Math.max(...values) > 20 * Math.min(...values) && !isLog) faults.push(`${svg.closest('figure')?.id ?? 'figure'}: one axis from 0 hides small values`);
    }
    const told = new Set();
    for (const element of [...document.querySelectorAll('body *')].filter(seen)) {
        if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
        const style = getComputedStyle(element);
        const [a, b] = [light(rgb(element.namespaceURI.endsWith('svg') ? style.fill : style.color)), light(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const kind = `${element.tagName}.${element.getAttribute('class') ?? ''}`;
        if (ratio < 4.5 && !told.has(kind)) {
            told.add(kind);
            faults.push(`${kind} "${element.textContent.slice(0, 30)}": contrast ${ratio.toFixed(1)}`);
        }
    }
    return { faults, height: Math.ceil(document.documentElement.getBoundingClientRect().height), figures: document.querySelectorAll('figure').length };
}

async function look(file, name, { width, scheme }) {
    const { targetId } = await ask('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await ask('Target.attachToTarget', { targetId, flatten: true });
    const page = (method, params) => ask(method, params, sessionId);
    const faults = [];
    let loaded;
    const load = new Promise((resolve) => { loaded = resolve; });
    const listener = ({ method, params, sessionId: of }) => {
        if (of !== sessionId) return;
        if (method === 'Network.requestWillBeSent' && params.request.url !== file) faults.push(`asks for ${params.request.url}`);
        if (method === 'Log.entryAdded') faults.push(`${params.entry.level}: ${params.entry.text}`);
        if (method === 'Page.loadEventFired') loaded();
    };
    listeners.add(listener);
    for (const domain of ['Network', 'Log', 'Page']) await page(`${domain}.enable`);
    const mobile = width < 640;
    await page('Emulation.setDeviceMetricsOverride', { width, height: 900, deviceScaleFactor: mobile ? 2 : 1, mobile });
    await page('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
    await page('Page.navigate', { url: file });
    await load;
    const { result } = await page('Runtime.evaluate', { expression: `(${faultsOfPage})()`, returnByValue: true });
    faults.push(...result.value.faults);
    if (shots) {
        const clip = { x: 0, y: 0, width, height: result.value.height, scale: 1 };
        const { data } = await page('Page.captureScreenshot', { captureBeyondViewport: true, clip });
        writeFileSync(join(shots, `${name}-${width}-${scheme}.png`), Buffer.from(data, 'base64'));
    }
    listeners.delete(listener);
    await ask('Target.closeTarget', { targetId });
    return { faults, figures: result.value.figures };
}

let bad = 0;
for (const directory of words.map((word) => resolve(word))) {
    const files = ['report.html', ...(shots ? readdirSync(directory).filter((file) => file.endsWith('.svg')) : [])];
    for (const file of files) {
        const isPage = file === 'report.html';
        const name = isPage ? basename(directory) : `${basename(directory)}-${file.slice(0, -4)}`;
        for (const [width, scheme] of isPage ? [[1200, 'light'], [1200, 'dark'], [390, 'light'], [390, 'dark'], [320, 'light']] : [[820, 'light']]) {
            const { faults, figures } = await look(pathToFileURL(join(directory, file)).href, name, { width, scheme });
            if (isPage && figures === 0) faults.push('no figure');
            faults.forEach((fault) => console.error(`${directory}/${file}, ${width} pixels, ${scheme}: ${fault}`));
            bad += faults.length;
            if (isPage && faults.length === 0) console.log(`${directory}/${file}, ${width} pixels, ${scheme}: ${figures} figures, readable, nothing fetched`);
        }
    }
}
const ended = new Promise((resolve) => { browser.on('exit', resolve); });
await ask('Browser.close');
await ended;
rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
process.exit(bad === 0 ? 0 : 1);
