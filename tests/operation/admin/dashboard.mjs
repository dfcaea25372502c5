// Opens the views of the dashboard in headless Chromium, light and dark, in three widths, and fails on text that is cut
// off, overlaps or is hard to read, on errors in the console, and on requests to other hosts. In the view of the group,
// it waits until the bar of the member SLOW is the longest, and as long as the API says.
// A trace of SLOW shows packets.
//   usage: node tests/operation/admin/dashboard.mjs URL GROUP FILTER SLOW TOKEN [SHOTS-DIR]
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { faultsOfPage, startPages } from '../../support/pages.mjs';

const [url, group, filter, slow, token, shots] = process.argv.slice(2);
if (shots) mkdirSync(shots, { recursive: true });
const inPath = [group, filter].map(encodeURIComponent).join('/');
const { withPage, end } = startPages(url);

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

const VIEWS = ['#', '#groups', `#group/${inPath}`, '#clients', `#client/${encodeURIComponent(slow)}`, '#slow', '#store', '#retained', '#trace', '#events'];
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
    // A finding of the broker has its advice and leads to its place; nothing is called fine beside it. The overview has a row for
    // the group, and the last events.
    await withPage({ hash: '#', width: 1200, scheme: 'light' }, async ({ run, until, faults }) => {
        await until(`[...document.querySelectorAll('#findings p')].some((p) => p.textContent.includes(${JSON.stringify(`${slow} has made no progress`)}) && p.querySelector('small') && p.querySelector('a')?.hash === ${JSON.stringify(`#group/${inPath}`)})`, `no finding says that ${slow} is stalled`);
        if (await run(`document.querySelector('#findings').textContent.includes('nothing looks wrong')`)) throw new Error('a finding stands beside "nothing looks wrong"');
        await until(`[...document.querySelectorAll('.rows tbody tr')].some((row) => row.firstChild.textContent === ${JSON.stringify(group)} && row.textContent.includes('3 / '))`, 'the overview has no row for the group');
        await until(`[...document.querySelectorAll('.rows td')].some((cell) => cell.textContent === 'started')`, 'the overview has no events');
        await run(`document.querySelector('main form select').value = '86400000'; document.querySelector('main form select').dispatchEvent(new Event('change', { bubbles: true }))`);
        await until(`[...document.querySelectorAll('.cards')].filter((cards) => cards.checkVisibility()).some((cards) => cards.textContent.includes('Lost and refused'))`, 'the charts of a day do not appear');
        faults.forEach((fault) => { bad++; console.error(`overview: ${fault}`); });
        console.log('findings, groups and the past are on the first page');
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
        await withPage({ hash, width: 1200, scheme: 'light' }, async ({ run, until, faults, look, shot }) => {
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
                writeFileSync(join(shots, `${hash.slice(1).split('/')[0] || 'overview'}-${width}-${scheme}.png`), await shot(width));
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
