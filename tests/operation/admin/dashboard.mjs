// Opens the views of the dashboard in headless Chromium, light and dark, in three widths, and fails on text that is cut
// off, overlaps or is hard to read, on errors in the console, and on requests to other hosts. In the view of the group,
// it waits until the bar of the member SLOW is the longest, and as long as the API says.
// A trace of SLOW shows packets.
//   usage: node tests/operation/admin/dashboard.mjs URL GROUP FILTER SLOW TOKEN [SHOTS-DIR]
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { startBrowser } from '../../support/browser.mjs';

const [url, group, filter, slow, token, shots] = process.argv.slice(2);
if (shots) mkdirSync(shots, { recursive: true });
const PATIENCE_MS = 60_000;
const inPath = [group, filter].map(encodeURIComponent).join('/');
const { ask, listeners, end } = startBrowser();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Runs in the page and measures everything as drawn.
function faultsOfPage() {
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

// Runs in the page: the members' bars as drawn, in milliseconds of the axis.
function barsOfPage() {
    const most = Number(document.querySelector('.members')?.dataset.mostMs);
    return [...document.querySelectorAll('.members li')].map((row) => {
        const bar = row.querySelector('.bar');
        const drawn = [...bar.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0);
        const full = bar.getBoundingClientRect().width;
        return { client: row.dataset.client, ms: (drawn * most) / full, pixel: most / full };
    });
}

// In the page: where names share a begin, their own parts are seen in full; no two names look the same.
const namesDiffer = `(() => {
    const beside = [...document.querySelectorAll('.dots > svg text:has(title)')].map((text) => text.lastChild.data);
    const own = [...document.querySelectorAll('.members .own')];
    const isSeen = (e) => e.previousSibling.textContent === '' || e.scrollWidth <= e.clientWidth && e.getBoundingClientRect().right <= e.closest('.name').getBoundingClientRect().right + 1;
    const differ = (texts) => texts.length > 2 && new Set(texts).size === texts.length;
    const shared = own.filter((e) => e.previousSibling.textContent !== '');
    return differ(beside) && differ(own.map((e) => e.textContent)) && shared.length === 2 && own.every(isSeen);
})()`;

async function withPage({ hash, width, scheme }, use) {
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
    await until("document.querySelector('#line')?.textContent.includes('up')", 'no snapshot comes');
    await use({ run, until, page, faults, look });
    listeners.delete(listener);
    await ask('Target.closeTarget', { targetId });
}

const VIEWS = ['#', '#groups', `#group/${inPath}`, '#clients', `#client/${encodeURIComponent(slow)}`, '#slow', '#store', '#retained', '#trace'];
let bad = 0;
try {
    // Bars as the API tells them. A page is at most a snapshot late, so that its figure is among those of the last seconds.
    await withPage({ hash: VIEWS[2], width: 1200, scheme: 'light' }, async ({ run, until, faults }) => {
        let seen = [];
        await until(async () => {
            const { members } = await (await fetch(`${url}/api/v1/groups/${inPath}`)).json();
            seen.push({ at: Date.now(), ms: members.find(({ client }) => client === slow)?.predicted_wait_ms ?? NaN });
            seen = seen.filter(({ at }) => at > Date.now() - 3000);
            const bars = await run(`(${barsOfPage})()`);
            const own = bars.find(({ client }) => client === slow);
            const [least, most] = [Math.min(...seen.map(({ ms }) => ms)), Math.max(...seen.map(({ ms }) => ms))];
            return own && own.ms > 0 && bars.every((bar) => bar === own || bar.ms < own.ms) && own.ms >= least - 2 * own.pixel && own.ms <= most + 2 * own.pixel;
        }, `${slow} has not the longest bar, or not that of the API`);
        await until(`document.querySelector('#findings').textContent.includes(${JSON.stringify(`${slow} has`)})`, 'no finding names the slow member');
        await until(`document.querySelectorAll('.dot').length > 0`, 'no decision is shown');
        await run(`document.querySelector('.dots > svg').focus(); document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true }))`);
        await until(`document.querySelectorAll('.dots .scroll tbody tr').length > 1`, 'a chosen decision shows no candidates');
        console.log(`bar of ${slow} is the longest`);
        faults.forEach((fault) => { bad++; console.error(`group: ${fault}`); });
    });
    // Long names that differ at their end look different, in the list of members and beside the decisions.
    await withPage({ hash: VIEWS[2], width: 360, scheme: 'light' }, async ({ run, until, look }) => {
        for (const width of [360, 800, 1200]) {
            await look(width, 'light');
            await until(`document.querySelectorAll('.dots > svg text title').length > 2 && ${namesDiffer}`, `names of members look alike at ${width} pixels`);
        }
        console.log('long names look different');
    });
    // A name of a client is text, and nothing else; a change asks for the token.
    await withPage({ hash: VIEWS[2], width: 1200, scheme: 'light' }, async ({ run, until }) => {
        await until(`document.querySelector('.members button') !== null`, 'no member is shown');
        await run(`document.querySelector('.members button').click()`);
        await until(`document.querySelector('#token').open`, 'nobody asks for the token');
        if (await run(`document.querySelectorAll('main b').length`) > 0) throw new Error('a name of a client became HTML');
        console.log('a change asks for the token');
    });
    // A trace asks for the token, and shows packets from then on.
    const beginTrace = async ({ run, until }) => {
        await run(`document.querySelector('input[name=topic]').value = ${JSON.stringify(filter)}; document.querySelector('form.filter button').click()`);
        await until(`document.querySelector('#token').open`, 'nobody asks for the token of a trace');
        await run(`document.querySelector('#token-text').value = ${JSON.stringify(token)}; document.querySelector('#token button[value=ok]').click()`);
        await until(`document.querySelectorAll('main tbody tr').length > 3`, 'a trace shows no packets');
    };
    for (const hash of VIEWS) {
        await withPage({ hash, width: 1200, scheme: 'light' }, async ({ run, until, page, faults, look }) => {
            await until(`document.querySelector('main h2') !== null`, 'the view is empty');
            if (hash === '#trace') {
                await beginTrace({ run, until });
                console.log('a trace shows packets');
            }
            for (const [width, scheme] of [[360, 'light'], [360, 'dark'], [1200, 'light'], [1200, 'dark'], [1920, 'light']]) {
                await look(width, scheme);
                // Charts take their width with the next snapshot.
                const line = await run(`document.querySelector('#line').textContent`);
                await until(`document.querySelector('#line').textContent !== ${JSON.stringify(line)}`, 'no more snapshots come');
                faults.push(...await run(`(${faultsOfPage})()`));
                faults.splice(0).forEach((fault) => { bad++; console.error(`${hash}, ${width} pixels, ${scheme}: ${fault}`); });
                if (!shots) continue;
                const height = await run('Math.ceil(document.documentElement.getBoundingClientRect().height)');
                const { data } = await page('Page.captureScreenshot', { captureBeyondViewport: true, clip: { x: 0, y: 0, width, height, scale: 1 } });
                writeFileSync(join(shots, `${hash.slice(1).split('/')[0] || 'overview'}-${width}-${scheme}.png`), Buffer.from(data, 'base64'));
            }
        });
    }
    if (bad === 0) console.log('views are readable');
} catch (error) {
    bad++;
    console.error(error.message);
}
await end();
process.exit(bad === 0 ? 0 : 1);
