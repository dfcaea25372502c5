// Opens the dashboard of a cluster's node in headless Chromium, light and dark, in three widths, and fails on text that is
// cut off, overlaps or is hard to read, on errors in the console, and if a text of TEXTS does not appear in each view.
//   usage: node tests/cluster/dashboard.mjs URL NAME LINE TEXTS [SHOTS-DIR]
// NAME is of the pictures, LINE is a text of the page's first line, and TEXTS is a JSON array.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { faultsOfPage, startPages } from '../support/pages.mjs';

const [url, name, shows, texts, shots] = process.argv.slice(2);
if (shots) mkdirSync(shots, { recursive: true });
const { withPage, end } = startPages(url);
let bad = 0;
try {
    for (const hash of ['#', '#cluster']) {
        await withPage({ hash, width: 1200, scheme: 'light', shows }, async ({ run, until, faults, look, shot }) => {
            for (const text of JSON.parse(texts)) await until(`document.body.innerText.includes(${JSON.stringify(text)})`, `${hash}: no ${text}`);
            for (const [width, scheme] of [[360, 'light'], [360, 'dark'], [1200, 'light'], [1200, 'dark'], [1920, 'light'], [1920, 'dark']]) {
                await look(width, scheme);
                const line = await run(`document.querySelector('#line').textContent`);
                await until(`document.querySelector('#line').textContent !== ${JSON.stringify(line)}`, 'no more snapshots come');
                faults.push(...await run(`(${faultsOfPage})()`));
                faults.splice(0).forEach((fault) => { bad++; console.error(`${name} ${hash}, ${width} pixels, ${scheme}: ${fault}`); });
                if (shots) writeFileSync(join(shots, `${name}-${hash.slice(1) || 'overview'}-${width}-${scheme}.png`), await shot(width));
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
