// Pages of the dashboard in headless Chromium, measured as they are drawn.
import { startBrowser } from './browser.mjs';

const PATIENCE_MS = 60_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Runs in the page and measures everything as drawn.
export function faultsOfPage() {
    const faults = [];
    if (document.documentElement.scrollWidth > window.innerWidth) faults.push(`the page is ${document.documentElement.scrollWidth} pixels wide`);
    // The texts with their places, as far as nothing around hides them.
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (!node.data.trim() || !node.parentElement.checkVisibility() || node.parentElement.closest('title, .skip, select')) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const { left, right, top, bottom } of range.getClientRects()) {
            const box = { left, right, top, bottom };
            for (let e = node.parentElement; e; e = e.parentElement) {
                if (getComputedStyle(e).overflowX === 'visible' || e instanceof SVGElement) continue;
                const frame = e.getBoundingClientRect();
                Object.assign(box, { left: Math.max(box.left, frame.left), right: Math.min(box.right, frame.right), top: Math.max(box.top, frame.top), bottom: Math.min(box.bottom, frame.bottom) });
            }
            // Letters fill the middle of their line.
            if (box.right - box.left > 1 && box.bottom - box.top > 6) texts.push({ node, box });
        }
    }
    for (const { node, box } of texts) if (box.right > window.innerWidth + 1 || box.left < -1) faults.push(`"${node.data}" is cut off`);
    texts.forEach((a, at) => texts.slice(at + 1).forEach((b) => {
        const width = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const height = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (a.node !== b.node && width > 1 && height > 5) faults.push(`"${a.node.data}" and "${b.node.data}" overlap`);
    }));
    // A ratio of 4.5 is readable.
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
    const told = new Set();
    for (const element of texts.map(({ node }) => node.parentElement)) {
        const style = getComputedStyle(element);
        const [a, b] = [light(rgb(element instanceof SVGElement ? style.fill : style.color)), light(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const kind = `${element.tagName}.${element.getAttribute('class') ?? ''}`;
        if (ratio < 4.5 && !told.has(kind)) faults.push(`${kind} "${element.textContent.slice(0, 30)}": contrast ${ratio.toFixed(1)}`);
        told.add(kind);
    }
    // What a keyboard and a screen reader need.
    for (const element of document.querySelectorAll('button, a, input, select, [role=img]')) {
        if (element.checkVisibility() && !element.textContent.trim() && !element.ariaLabel && !element.labels?.length) faults.push(`a ${element.tagName} without a name`);
    }
    for (const figure of document.querySelectorAll('main figure, main .dots')) if (!figure.querySelector('details table')) faults.push('a chart without a table');
    return [...new Set(faults)];
}

// Starts a browser. `withPage` opens a page of the dashboard at `url`, waits until its line has the text `shows`, and calls
// `use`. Errors in the console and requests to other hosts are among its `faults`.
export function startPages(url) {
    const { ask, listeners, end } = startBrowser();
    const withPage = async ({ hash, width, scheme, shows = 'up' }, use) => {
        const { targetId } = await ask('Target.createTarget', { url: 'about:blank' });
        const { sessionId } = await ask('Target.attachToTarget', { targetId, flatten: true });
        const page = (method, params) => ask(method, params, sessionId);
        const faults = [];
        const listener = ({ method, params, sessionId: of }) => {
            if (of !== sessionId) return;
            if (method === 'Network.requestWillBeSent' && !params.request.url.startsWith(url)) faults.push(`asks for ${params.request.url}`);
            if (method === 'Log.entryAdded') faults.push(`${params.entry.level}: ${params.entry.text} ${params.entry.url ?? ''}`);
            if (method === 'Runtime.exceptionThrown') faults.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
        };
        listeners.add(listener);
        for (const domain of ['Network', 'Log', 'Page', 'Runtime']) await page(`${domain}.enable`);
        const look = async (width, scheme) => {
            await page('Emulation.setDeviceMetricsOverride', { width, height: 900, deviceScaleFactor: 1, mobile: width < 640 });
            await page('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }, { name: 'prefers-reduced-motion', value: 'reduce' }] });
        };
        await look(width, scheme);
        await page('Page.navigate', { url: `${url}/${hash}` });
        const run = async (what) => {
            const { result, exceptionDetails } = await page('Runtime.evaluate', { expression: what, returnByValue: true, awaitPromise: true });
            if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
            return result.value;
        };
        const until = async (what, why) => {
            const last = Date.now() + PATIENCE_MS;
            while (!await (typeof what === 'string' ? run(what) : what(run))) {
                if (Date.now() > last) throw new Error(`${why}; ${faults.join('; ')}; the page: ${await run('document.body?.innerText.slice(0, 600)')}`);
                await pause(50);
            }
        };
        // A picture of the whole page.
        const shot = async (width) => {
            const height = await run('Math.ceil(document.documentElement.getBoundingClientRect().height)');
            const { data } = await page('Page.captureScreenshot', { captureBeyondViewport: true, clip: { x: 0, y: 0, width, height, scale: 1 } });
            return Buffer.from(data, 'base64');
        };
        await until(`document.querySelector('#line')?.textContent.includes(${JSON.stringify(shows)})`, 'no snapshot comes');
        await use({ run, until, faults, look, shot });
        listeners.delete(listener);
        await ask('Target.closeTarget', { targetId });
    };
    return { withPage, end };
}
