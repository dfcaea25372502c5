// The dashboard of Tenbin. Texts of clients only ever enter the page as text nodes or attributes, never as HTML.

const KEPT_MS = 300_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const PAST_EACH_MS = 30_000;
const EVENTS_KEPT = 200;
const EVENTS_IN_OVERVIEW = 6;
const DECISIONS_MS = 60_000;
const DECISIONS_KEPT = 2000;
const FINDINGS_SHOWN = 6;
const PACKETS_SHOWN = 500;
const MAIN = document.querySelector('#main');

// ---- Elements and numbers ----

// Makes an element: properties that begin with "on" are listeners, further arguments are children.
function el(name, properties = {}, ...children) {
    const isDrawn = ['svg', 'path', 'line', 'circle', 'text', 'title', 'g'].includes(name);
    const element = isDrawn ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
        if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
        else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
}

// Writes a text only if it has changed, so that a selection of it stays.
function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

// Makes the children of `parent` those of `items`, and keeps the elements whose key stays: focus and scrolling stay too.
function keep(parent, items, key, make, fill) {
    parent.kept ??= new Map();
    const kept = new Map();
    items.forEach((item, at) => {
        const name = key(item, at);
        const element = parent.kept.get(name) ?? make(item);
        kept.set(name, element);
        fill(element, item, at);
        if (parent.children[at] !== element) parent.insertBefore(element, parent.children[at] ?? null);
    });
    while (parent.children.length > kept.size) parent.lastChild.remove();
    parent.kept = kept;
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat('en', { maximumFractionDigits: 1, notation: 'compact' });
const number = (value) => (value === null || value === undefined ? '–' : Math.abs(value) >= 1e6 ? short.format(value) : Math.abs(value) >= 100 ? whole.format(value) : fine.format(value));
const percent = (value) => `${fine.format(100 * value)} %`;

function bytes(value) {
    if (value === null || value === undefined) return '–';
    const power = Math.min(4, Math.floor(Math.log2(Math.max(value, 1)) / 10));
    return `${fine.format(value / 1024 ** power)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}

function time(ms) {
    if (ms === null || ms === undefined) return '–';
    if (ms < 1) return ms === 0 ? '0 ms' : `${Number(ms.toFixed(3))} ms`;
    if (ms < 1000) return `${Number(ms.toPrecision(3))} ms`;
    if (ms < 120_000) return `${Number((ms / 1000).toPrecision(3))} s`;
    const minutes = Math.round(ms / 60_000);
    return minutes < 120 ? `${minutes} min` : minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
}

// The least of 1, 2 or 5 times a power of ten that is not below `value`.
function ceiling(value) {
    if (!(value > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    return power * [1, 2, 5, 10].find((step) => step * power >= value * (1 - 1e-9));
}

const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
const named = (value) => (value === '' ? '""' : value);
// Where each name's own part begins: behind the longest part that it shares with another name, back to a separator. The own
// part of a long name that shares nothing is behind its last separator: names of pods differ in their ends.
function ownParts(names) {
    const sorted = names.toSorted();
    const shared = (name, other = '') => {
        let at = 0;
        while (at < name.length && name[at] === other[at]) at++;
        return at;
    };
    return new Map(sorted.map((name, at) => {
        const most = name.slice(0, Math.max(shared(name, sorted[at - 1]), shared(name, sorted[at + 1])));
        const own = (most.replace(/[\p{L}\p{N}]+$/u, '') || most.replace(/\d+$/, '')).length;
        return [name, own > 0 || name.length <= 16 ? own : name.search(/[\p{L}\p{N}]*$/u)];
    }));
}
// A name in `most` letters: always its end, and the begin of its own part if there is room.
const shortened = (name, own, most) => {
    if (name.length <= most) return name;
    if (own > 0 && name.length - own < most) return `…${name.slice(1 - most)}`;
    const lead = own > 0 ? '…' : '';
    const room = most - lead.length - 1;
    const begin = Math.ceil(room / 2);
    return `${lead}${name.slice(own, own + begin)}…${name.slice(begin - room)}`;
};
const path = (...parts) => parts.map(encodeURIComponent).join('/');
const link = (view, text, ...parts) => el('a', { href: `#${view}/${path(...parts)}` }, text);
// A client that does not report its load leaves `pending` at the number of all its messages.
const messagesOf = (member) => (member.reported_processing_time_ms > 0 ? Math.max(member.pending, member.in_flight) : member.in_flight);

// A table of rows of cells; numbers stand right. `rows` gives its rows when it is opened, and each second while it is.
function table(heads, numeric = []) {
    const body = el('tbody');
    const side = (at) => (numeric.includes(at) ? 'n' : null);
    const element = el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table' }, el('table', {},
        el('thead', {}, el('tr', {}, ...heads.map((head, at) => el('th', { scope: 'col', class: side(at) }, head)))), body));
    const fill = (rows, keyOf = (_, at) => at) => keep(body, rows, keyOf, (row) => el('tr', {}, ...row.map((_, at) => el('td', { class: side(at) }))), (line, row) => {
        row.forEach((cell, at) => {
            const place = line.children[at];
            if (!(cell instanceof Node)) write(place, String(cell));
            else if (place.textContent !== cell.textContent || place.firstElementChild?.getAttribute('href') !== cell.getAttribute('href')) place.replaceChildren(cell);
        });
        line.className = row.isChosen ? 'chosen' : '';
    });
    return { element, fill };
}

// A table of a chart, closed at first.
function asTable(heads, rows, numeric) {
    const { element, fill } = table(heads, numeric);
    const update = () => { if (details.open) fill(rows()); };
    const details = el('details', { ontoggle: update }, el('summary', {}, 'As a table'), element);
    return { element: details, update };
}

function terms(list) {
    const places = list.map(([name]) => [el('dt', {}, name), el('dd')]);
    const element = el('dl', {}, ...places.flat());
    return { element, fill: (...values) => values.forEach((value, at) => {
        const place = places[at][1];
        if (!(value instanceof Node)) write(place, String(value));
        else if (place.innerHTML !== value.outerHTML) place.replaceChildren(value);
    }) };
}

// ---- Charts ----

// A path through [time, value]; it breaks where a value is missing.
function lineOf(points, now, top, span = KEPT_MS) {
    let pen = 'M';
    return points.map(([at, value]) => {
        if (value === null || value === undefined || Number.isNaN(value)) { pen = 'M'; return ''; }
        const part = `${pen}${(100 - ((now - at) * 100) / span).toFixed(2)} ${(40 - (value * 38) / top).toFixed(2)}`;
        pen = 'L';
        return part;
    }).join('');
}

// Lines over the last five minutes, or the time that `span` gives. `series`: names with the points that `points` gives; all
// have one unit.
function chart(title, unit, series, span = () => KEPT_MS) {
    const lines = series.map((_, at) => el('path', { class: `line c${at}` }));
    const [now, top] = [el('p', { class: 'now' }), el('span', { class: 'top' })];
    const values = series.map(() => el('span'));
    series.forEach(({ name }, at) => now.append(
        el('svg', { class: 'key', viewBox: '0 0 22 10', 'aria-hidden': 'true' }, el('path', { class: `line c${at}`, d: 'M0 6L22 6' })),
        values[at], el('small', {}, ` ${name}  `)));
    const rows = () => {
        const all = series.map(({ points }) => points());
        return all[0].map(([at], index) => [clock(at), ...all.map((points) => unit(points[index]?.[1]))]).reverse().filter((_, index) => index % 5 === 0);
    };
    const data = asTable(['Time', ...series.map(({ name }) => name)], rows, series.map((_, at) => at + 1));
    const element = el('figure', { class: 'card' }, el('h3', {}, title), now, el('div', { class: 'plot' }, top,
        el('svg', { viewBox: '0 0 100 40', height: 72, preserveAspectRatio: 'none', role: 'img', 'aria-label': title }, el('path', { class: 'line axis', d: 'M0 40L100 40' }), ...lines)), data.element);
    return { element, update(at) {
        const all = series.map(({ points }) => points());
        const most = ceiling(Math.max(...all.flat().map(([, value]) => value ?? 0), 0));
        write(top, unit(most));
        lines.forEach((line, index) => line.setAttribute('d', lineOf(all[index], at, most, span())));
        values.forEach((value, index) => write(value, unit(all[index].at(-1)?.[1])));
        data.update();
    } };
}

// ---- What the page remembers ----

const past = []; // {at, snapshot without its groups}
const groupsPast = new Map(); // group and filter → {points: [time, backlog, arrivals, completions], members: Map of [time, processing time], idle: seconds}
let latest = null;
let isStandby = false; // the node of this page does not lead
let decisions = [];
let token = '';

let lastDay = null; // the last day, as the broker has kept it: rows of ten seconds and of minutes
let happened = []; // the last events, the newest first
let askedAt = 0;

// Reads the past of the broker, also from before this page was open.
async function readPast() {
    if (Date.now() - askedAt < PAST_EACH_MS) return;
    askedAt = Date.now();
    try {
        lastDay = await read('/api/v1/past');
        happened = lastDay.events;
    } catch {
        lastDay = null; // the stream tells why
    }
}

// Adds the events of a snapshot, its newest ones, to those that are known.
function addEvents(events = []) {
    const key = ({ kind, text }) => `${kind} ${text}`;
    const newer = new Set(events.map(key));
    happened = [...events, ...happened.filter((event) => !newer.has(key(event)))].toSorted((a, b) => b.time_ms - a.time_ms).slice(0, EVENTS_KEPT);
}

// Points of a series of the past, over an hour or a day.
const kept = (name, span) => () => {
    const ring = lastDay?.[span() > HOUR_MS ? 'minutes' : 'ten_seconds'];
    const values = ring?.values[name] ?? [];
    return values.map((value, at) => [ring.end_ms - (values.length - at) * ring.step_ms, value]);
};

const groupKey = (group) => JSON.stringify([group.group, group.filter]);
const rate = (name) => () => past.map(({ at, snapshot }) => [at, snapshot.rates?.[name]]);
const figure = (get) => () => past.map(({ at, snapshot }, index) => [at, get(snapshot, past[index - 1]?.snapshot)]);

function forget() {
    past.length = 0;
    groupsPast.clear();
    decisions = [];
    askedAt = 0;
}

function remember(snapshot) {
    const at = snapshot.time_ms;
    // A broker that has started again has another past.
    if (latest && snapshot.uptime_seconds < latest.uptime_seconds) forget();
    latest = snapshot;
    const { groups, decisions: _, ...rest } = snapshot;
    past.push({ at, snapshot: rest });
    while (past[0].at < at - KEPT_MS) past.shift();
    groups.forEach((group) => rememberGroup(group, at));
    for (const [key, { points }] of groupsPast) if (points.at(-1)[0] < at - KEPT_MS) groupsPast.delete(key);
}

function rememberGroup(group, at) {
    const key = groupKey(group);
    const kept = groupsPast.get(key) ?? { points: [], members: new Map(), uneven: 0 };
    groupsPast.set(key, kept);
    if (kept.points.at(-1)?.[0] === at) return;
    const young = (points) => { while (points[0]?.[0] < at - KEPT_MS) points.shift(); return points; };
    young(kept.points).push([at, group.scale.backlog, group.scale.arrivals_per_second, group.scale.completions_per_second]);
    for (const member of group.members) {
        const points = kept.members.get(member.client) ?? [];
        kept.members.set(member.client, points);
        young(points).push([at, member.processing_time_ms]);
    }
    for (const [client, points] of kept.members) if (young(points).length === 0) kept.members.delete(client);
    kept.uneven = unevenness(group) ? kept.uneven + 1 : 0;
}

// ---- Findings ----

// Members without work beside one with much: the sentence on it.
function unevenness(group) {
    const there = group.members.filter((member) => member.state !== 'offline');
    const idle = there.filter((member) => member.state === 'ready' && messagesOf(member) === 0);
    const most = there.toSorted((a, b) => messagesOf(b) - messagesOf(a))[0];
    if (!most || idle.length === 0 || messagesOf(most) < 10) return null;
    return `group ${named(group.group)}: ${idle.length} of ${there.length} members idle, ${named(most.client)} has ${number(messagesOf(most))} waiting`;
}

function findings(snapshot) {
    // The broker's findings have their begin and what to do.
    const found = (snapshot.findings ?? []).map(({ text, advice, link: href, since_ms: since }) => ({ text, href, advice: `${advice} Since ${clock(since)}.` }));
    const say = (text, href) => found.push({ text, href });
    if (snapshot.state !== 'serving') say(`the broker is ${snapshot.state}`);
    for (const text of snapshot.cluster?.findings ?? []) say(`cluster: ${text}`, '#cluster');
    // Three seconds on end: a moment's unevenness is normal.
    for (const group of snapshot.groups) if (groupsPast.get(groupKey(group))?.uneven >= 3) say(unevenness(group), `#group/${path(group.group, group.filter)}`);
    const slow = snapshot.slow.clients.map((client) => named(client.client));
    if (slow.length > 0) say(`${slow.length === 1 ? 'one slow receiver' : `${slow.length} slow receivers`}: ${slow.slice(0, 3).join(', ')}${slow.length > 3 ? ' …' : ''}`, '#slow');
    for (const [name, why] of DROPS) if (snapshot.rates?.[name] > 0) say(`messages dropped: ${number(snapshot.rates[name])} a second, ${why}`);
    if (snapshot.rates?.refused_over_quota > 0) say(`messages refused: ${number(snapshot.rates.refused_over_quota)} a second, a receiver's queue is over its limit`);
    const store = snapshot.store;
    if (store && store.state_health !== 'writing') say(`store: state is ${store.state_health}`, '#store');
    if (store && store.messages_health !== 'writing') say(`store: messages are ${store.messages_health}`, '#store');
    if (store?.maximum_bytes > 0 && store.used_bytes > 0.9 * store.maximum_bytes) say(`store: ${percent(store.used_bytes / store.maximum_bytes)} of its room is in use`, '#store');
    return found;
}

const DROPS = [['dropped_queue_full', 'queue full'], ['dropped_offline', 'receiver offline'], ['dropped_expired', 'expired'], ['dropped_too_large', 'too large for the receiver']];

function showFindings(list) {
    const all = list.length > 0 ? list.slice(0, FINDINGS_SHOWN) : [{ text: 'nothing looks wrong' }];
    if (list.length > FINDINGS_SHOWN) all.push({ text: `${list.length - FINDINGS_SHOWN} more` });
    keep(document.querySelector('#findings'), all, (_, at) => at, () => el('p'), (line, { text, href, advice, isFine }) => {
        line.className = list.length > 0 && !isFine ? '' : 'fine';
        const is = `${text}${advice ? ` ${advice}` : ''}`;
        if (line.textContent !== is) line.replaceChildren(href ? el('a', { href }, text) : text, ...(advice ? [el('small', {}, ` ${advice}`)] : []));
        else if (href) line.firstElementChild?.setAttribute('href', href);
    });
}

// ---- Requests ----

// Asks for the token; resolves to whether there is one now.
function askToken(title, why) {
    const dialog = document.querySelector('#token');
    const text = document.querySelector('#token-text');
    write(document.querySelector('#token-title'), title);
    write(document.querySelector('#token-why'), why);
    text.value = '';
    dialog.returnValue = '';
    dialog.showModal();
    return new Promise((resolve) => dialog.addEventListener('close', () => {
        if (dialog.returnValue === 'ok') token = text.value.trim();
        resolve(dialog.returnValue === 'ok');
    }, { once: true }));
}

async function request(where, options = {}) {
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const answer = await fetch(where, { ...options, headers, cache: 'no-store' });
    if (answer.ok) return answer;
    const { detail } = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(detail ?? answer.statusText), { status: answer.status });
}

const read = async (where) => (await request(where)).json();

// Changes something, with a token; asks again for it while the broker refuses it.
async function change(method, where, what) {
    let why = 'This changes the broker. It needs the token of an operator.';
    for (;;) {
        if (!token && !await askToken(what, why)) return null;
        try {
            return await (await request(where, { method })).json();
        } catch (error) {
            if (error.status !== 401 && error.status !== 403) { await told(what, error.message); return null; }
            [token, why] = ['', error.message];
        }
    }
}

function told(title, text) {
    const dialog = el('dialog', {}, el('h2', {}, title), el('p', {}, text), el('form', { method: 'dialog' }, el('button', {}, 'Close')));
    document.body.append(dialog);
    dialog.showModal();
    return new Promise((resolve) => dialog.addEventListener('close', () => { dialog.remove(); resolve(); }, { once: true }));
}

// ---- The stream ----

let stream = null;

// Calls `each` with the data of server-sent events until they end.
async function events(answer, each) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Error('it ended');
        const all = (text + value).split('\n\n');
        text = all.pop();
        for (const event of all) {
            const data = event.split('\n').find((part) => part.startsWith('data:'));
            // A mistake of the page is no lost connection.
            try { if (data) each(JSON.parse(data.slice(5))); } catch (mistake) { reportError(mistake); }
        }
    }
}

// Reads snapshots until the view needs others. fetch() and not EventSource, which cannot send a token.
async function follow(query) {
    stream?.abort();
    const own = stream = new AbortController();
    const line = document.querySelector('#line');
    while (!own.signal.aborted) {
        try {
            const answer = await request(`/api/v1/events${query}`, { signal: own.signal });
            await events(answer, receive);
        } catch (error) {
            if (own.signal.aborted) return;
            if ((error.status === 401 || error.status === 403) && await askToken('Token', error.message)) continue;
            write(line, 'no connection');
            showFindings([{ text: `no connection to the broker (${error.message}); the figures are those of ${latest ? clock(latest.time_ms) : 'nothing'}` }]);
            await new Promise((resolve) => setTimeout(resolve, 2000));
        }
    }
}

function receive(snapshot) {
    document.querySelector('nav a[href="#cluster"]').hidden = !snapshot.cluster;
    const hasChanged = isStandby !== (snapshot.state === 'standby');
    isStandby = document.body.classList.toggle('standby', snapshot.state === 'standby');
    if (isStandby) {
        // Another node has the broker and its figures.
        forget();
        latest = snapshot;
        const { node, role } = snapshot.cluster ?? { node: 'the node', role: 'without an answer' };
        write(document.querySelector('#line'), `${clock(snapshot.time_ms)} · ${node} · ${role}`);
        showFindings(standbyFindings(snapshot.cluster));
        if (hasChanged) open();
        view.update?.(snapshot);
        return;
    }
    remember(snapshot);
    addEvents(snapshot.events);
    readPast();
    if (hasChanged) open();
    for (const decision of snapshot.decisions ?? []) if (decision.number > (decisions.at(-1)?.number ?? 0)) decisions.push(decision);
    decisions = decisions.filter(({ time_ms: at }) => at > snapshot.time_ms - KEPT_MS).slice(-DECISIONS_KEPT);
    write(document.querySelector('#line'), `${clock(snapshot.time_ms)} · ${snapshot.cluster ? `leader ${snapshot.cluster.node} · ` : ''}${number(snapshot.clients)} clients · up ${time(snapshot.uptime_seconds * 1000)}`);
    showFindings(findings(snapshot));
    view.update?.(snapshot);
}

// ---- Views: each makes its elements, and brings them up to date with each snapshot ----

// Nodes of a cluster by name, each with its role. A node to which the leader has no link is away.
function nodesOf({ node, role, record, peers, copies }) {
    const roleOf = (name) => (name === record?.leader ? 'leader' : name === record?.follower ? 'follower' : name === record?.joiner ? 'joiner' : 'spare');
    const others = peers.map((peer) => {
        const is = !record ? 'unknown' : role === 'leader' && !peer.is_linked ? 'away' : roleOf(peer.node);
        const isHeard = role === 'leader' || is === 'leader';
        return { ...peer, role: is, link: !isHeard ? '–' : peer.is_linked ? 'open' : 'none' };
    });
    const own = { node, role, address: '', link: 'this page' };
    const content = (each) => ({ leader: 'all data', follower: copies > 1 ? 'all data' : 'not confirmed yet', joiner: joining(each) }[each.role] ?? '–');
    return [own, ...others].toSorted((a, b) => (a.node < b.node ? -1 : 1)).map((each) => ({ ...each, content: content(each) }));
}

// How far a join is: it compares or copies the log, and copies the state.
function joining({ copied_bytes: copied, log_bytes: all }) {
    if (copied === null || copied === undefined) return 'is being copied to';
    if (!all) return 'begins';
    const part = Math.min(1, copied / all);
    const fill = el('i', { class: 'p0' });
    fill.style.width = `${100 * part}%`;
    return el('span', {}, `${percent(part)}, ${bytes(copied)} of ${bytes(all)}`, el('span', { class: 'bar', role: 'img', 'aria-label': `copied: ${percent(part)}` }, fill));
}

const badge = (role) => el('span', { class: `badge ${role}` }, role);

// The number of copies, beside the number of nodes that have data when all is well.
const copiesOf = ({ copies, peers }) => `${copies} of ${Math.min(2, peers.length + 1)} copies`;

function takeoverOf({ takeover_ms: took, took_over_at_ms: at }) {
    return took === null ? 'none by this node' : `${time(took)}, at ${clock(at)}`;
}

// A node by name, as a link if its page is known.
function leaderOf({ record, node, leader_admin: admin }) {
    const name = record?.leader;
    if (!name) return 'unknown';
    return admin && name !== node ? el('a', { href: `${admin}/` }, name) : name;
}

function cluster() {
    const facts = terms([['Cluster'], ['This node'], ['Leader'], ['Copies'], ['Epoch'], ['Agreement'], ['Last takeover'], ['Leader heard'], ['Clients passed on']]);
    const { element, fill } = table(['Node', 'Role', 'Data', 'Link', 'Address']);
    const list = el('section', { class: 'card cluster' }, el('h3', {}, 'Nodes'), element);
    const note = el('p', { class: 'note' });
    return { title: 'Cluster', element: el('div', { class: 'facts' }, el('section', { class: 'card' }, facts.element), list, note), update({ cluster: value }) {
        write(note, value ? '' : isStandby ? 'The node does not answer.' : 'This broker is no node of a cluster.');
        if (!value) return;
        const { relay } = value;
        facts.fill(value.cluster, `${value.node}, version ${value.version}`, leaderOf(value), copiesOf(value), value.record?.epoch ?? '–', value.engine.error ? `${value.engine.kind}: ${value.engine.error}` : value.engine.kind, takeoverOf(value),
            value.heard_ms === null ? '–' : `${time(value.heard_ms)} ago`, relay ? `${number(relay.open)} now, ${number(relay.total)} since it relays, ${number(relay.refused)} refused` : 'none: this node serves them');
        fill(nodesOf(value).map((each) => [each.node, badge(each.role), each.content, each.link, each.address]), ([name]) => name);
    } };
}

// What a person has to know at a node that does not lead.
function standbyFindings(value) {
    const found = (value?.findings ?? []).map((text) => ({ text }));
    const name = value?.record?.leader;
    const isFine = Boolean(name) && name !== value.node;
    const text = isFine ? `this node does not lead: the broker's figures are at ${name}` : 'this node does not lead, and knows no leader';
    return [{ text, href: value?.leader_admin ? `${value.leader_admin}/` : null, isFine }, ...found];
}

// The cluster in the overview.
function clusterCard() {
    const now = el('p', { class: 'now' });
    const { element, fill } = table(['Node', 'Role', 'Data']);
    const card = el('section', { class: 'card cluster', hidden: true }, el('h3', {}, el('a', { href: '#cluster' }, 'Cluster')), now, element);
    return { element: card, update({ cluster: value }) {
        card.hidden = !value;
        if (!value) return;
        write(now, copiesOf(value));
        fill(nodesOf(value).map((each) => [each.node, badge(each.role), each.content]), ([name]) => name);
    } };
}

// A row for each group: how long messages wait, and for whom.
function groupRows() {
    const { element, fill } = table(['Group', 'Topic Filter', 'Wait p50', 'Wait p99', 'Backlog', 'Members / wanted', 'Slowest ÷ median'], [2, 3, 4, 5, 6]);
    const card = el('section', { class: 'rows', hidden: true, 'aria-label': 'Share groups' }, element);
    return { element: card, update({ groups: all }) {
        card.hidden = all.length === 0;
        fill(all.map((group) => {
            const { wait_p50_ms: p50, wait_p99_ms: p99, slowest_over_median: slowest } = group.summary ?? {};
            return [link('group', named(group.group), group.group, group.filter), group.filter, time(p50), time(p99), number(group.scale.backlog), `${group.scale.members} / ${wanted(group.scale)}`, number(slowest)];
        }));
    } };
}

const wanted = ({ desired }) => (desired === null ? '–' : number(desired));

const EVENT_HEADS = ['Time', 'Kind', 'Event', 'Times'];
const dated = (ms) => (Date.now() - ms < DAY_MS / 2 ? clock(ms) : `${new Date(ms).toISOString().slice(0, 10)} ${clock(ms)}`);
const eventRow = ({ time_ms: at, kind, text, times }) => [dated(at), kind.replaceAll('_', ' '), text, number(times)];

function lastEvents() {
    const { element, fill } = table(EVENT_HEADS, [3]);
    const card = el('section', { class: 'rows', hidden: true, 'aria-label': 'Last events' }, el('h3', {}, el('a', { href: '#events' }, 'Last events')), element);
    return { element: card, update() {
        card.hidden = happened.length === 0;
        fill(happened.slice(0, EVENTS_IN_OVERVIEW).map(eventRow));
    } };
}

function eventsView() {
    const { element, fill } = table(EVENT_HEADS, [3]);
    const note = el('p', { class: 'note' }, 'The last 200 events, the newest first, also from before a restart. Events alike are one row.');
    return { title: 'Events', element: el('div', {}, note, element), update: () => fill(happened.map(eventRow)) };
}

let chosenSpan = null; // what the user has chosen; null = an hour, once there is something of it

// The charts of the overview over an hour or a day.
function pastCharts(span) {
    const of = (title, unit, ...series) => chart(title, unit, series.map(([name, key]) => ({ name, points: kept(key, span) })), span);
    return [
        of('Messages a second', number, ['in', 'messages_received'], ['out', 'messages_sent']),
        of('Bytes a second', bytes, ['in', 'bytes_received'], ['out', 'bytes_sent']),
        of('Delivery: receipt to socket', time, ['p50', 'delivery_p50_ms'], ['p99', 'delivery_p99_ms']),
        of('Share groups', number, ['backlog', 'group_backlog'], ['members', 'group_members'], ['wanted', 'group_wanted']),
        of('Clients', number, ['connected', 'clients'], ['sessions', 'sessions']),
        of('Connects a second', number, ['accepted', 'connects_accepted']),
        of('Lost and refused a second', number, ['dropped', 'dropped'], ['refused by a bound', 'refused'], ['denied', 'denied']),
        of('Slow receivers', number, ['slow', 'slow_clients']),
        of('Queued messages', number, ['in memory', 'queued_messages'], ['on disk', 'stored_messages']),
        of('Memory', bytes, ['of queues', 'queued_bytes'], ['of clients', 'memory_bytes']),
        of('Store: commit time', time, ['mean', 'commit_ms']),
    ];
}

function overview() {
    const nodes = clusterCard();
    const [rows, last] = [groupRows(), lastEvents()];
    const live = [
        chart('Messages a second', number, [{ name: 'in', points: rate('messages_received') }, { name: 'out', points: rate('messages_sent') }]),
        chart('Bytes a second', bytes, [{ name: 'in', points: rate('bytes_received') }, { name: 'out', points: rate('bytes_sent') }]),
        chart('Delivery: receipt to socket', time, [{ name: 'p50', points: figure((s) => s.delivery?.p50_ms) }, { name: 'p99', points: figure((s) => s.delivery?.p99_ms) }]),
        chart('Connects a second', number, [{ name: 'accepted', points: rate('connects_accepted') }, { name: 'rate-limited', points: rate('connects_rate_limited') }]),
        chart('Clients', number, [{ name: 'connected', points: figure((s) => s.clients) }, { name: 'sessions', points: figure((s) => s.sessions) }]),
        chart('Dropped a second', number, DROPS.map(([name, why]) => ({ name: why, points: rate(name) }))),
        chart('Slow receivers', number, [{ name: 'watched', points: figure((s) => s.slow.watch) }, { name: 'spilling to disk', points: figure((s) => s.slow.spooling) }]),
        chart('Queued messages', number, [{ name: 'in memory', points: figure((s) => s.queued_messages) }, { name: 'on disk', points: figure((s) => s.store?.waiting_messages) }]),
        chart('Memory', bytes, [{ name: 'of queues', points: figure((s) => s.queued_bytes) }, { name: 'of clients', points: figure((s) => s.memory_bytes) }]),
        chart('Store: commit time', time, [{ name: 'mean of a second', points: figure(commitTime) }]),
    ];
    const spans = [[KEPT_MS, '5 minutes'], [HOUR_MS, 'an hour'], [DAY_MS, 'a day']];
    const choice = el('select', { onchange: () => { chosenSpan = Number(choice.value); show(latest); } }, ...spans.map(([ms, name]) => el('option', { value: ms }, name)));
    const span = () => chosenSpan ?? ((lastDay?.ten_seconds.values.clients.length ?? 0) >= 6 ? HOUR_MS : KEPT_MS);
    const old = pastCharts(span);
    const [liveCards, oldCards] = [live, old].map((charts) => el('div', { class: 'cards' }, ...charts.map(({ element }) => element)));
    const form = el('form', { class: 'filter' }, el('label', {}, 'The last', choice));
    const show = (snapshot) => {
        if (!snapshot) return;
        nodes.update(snapshot);
        rows.update(snapshot);
        last.update();
        const isLive = span() === KEPT_MS;
        choice.value = span();
        liveCards.hidden = !isLive;
        oldCards.hidden = isLive;
        (isLive ? live : old).forEach((each) => each.update(snapshot.time_ms));
    };
    return { title: 'Overview', element: el('div', {}, rows.element, nodes.element, last.element, form, liveCards, oldCards), update: show };
}

// Mean time of the commits since the snapshot before; the broker tells the mean since its start.
function commitTime({ store }, before) {
    const commits = store && before?.store ? store.commits - before.store.commits : 0;
    return commits > 0 ? Math.max(0, (store.commits * store.commit_ms - before.store.commits * before.store.commit_ms) / commits) : null;
}

function groups() {
    const { element, fill } = table(['Group', 'Topic Filter', 'Policy', 'Members', 'Wanted', 'Backlog', 'Arrive/s', 'Drain time'], [3, 4, 5, 6, 7]);
    const note = el('p', { class: 'note' });
    return { title: 'Share groups', element: el('div', {}, element, note), update({ groups: all, groups_total: total }) {
        fill(all.map((group) => [link('group', named(group.group), group.group, group.filter), group.filter, group.policy, group.scale.members, wanted(group.scale), number(group.scale.backlog), number(group.scale.arrivals_per_second), drainTime(group.scale)]));
        write(note, total === 0 ? 'There is no share group.' : total > all.length ? `${all.length} of ${number(total)}: those with the longest backlogs, then those with the most messages.` : '');
    } };
}

const drainTime = ({ drain_seconds: drain, completions_per_second: speed }) => (drain !== null ? time(drain * 1000) : speed === null ? 'unknown' : 'never');

function group(name, filter) {
    decisions = [];
    const key = JSON.stringify([name, filter]);
    const where = `/api/v1/groups/${path(name, filter)}`;
    let [shown, missing] = [null, el('p', { hidden: true })];
    const axis = el('span');
    const list = el('ol', { class: 'members', 'aria-label': 'Members' });
    const legend = el('p', { class: 'legend' }, ...PARTS.map(([, text], at) => el('span', {}, el('span', { class: `key p${at}` }), text)), axis);
    const rows = asTable(['Member', 'State', 'Predicted wait', ...PARTS.map(([, text]) => text), 'Processing time', 'Share', 'Messages', 'Late', 'In flight', 'Limit', 'Learnt', 'Alone', 'Busy', 'Tries', 'Last try'], () => shown.members.map((member) => [
        named(member.client), member.state, time(member.predicted_wait_ms), ...PARTS.map(([part]) => time(member[part])), processing(member), percent(member.share), number(member.messages), time(member.late_ms),
        number(member.in_flight), member.in_flight_maximum === null ? 'none' : number(member.in_flight_maximum), member.service, time(member.alone_ms || null), time(member.busy_ms || null), number(member.tries), time(member.last_try_ms || null)]), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16]);
    const facts = terms([['Policy'], ['Backlog'], ['Members'], ['Wanted'], ['Arrive'], ['Complete'], ['Drain time'], ['Shadow'], ['Its difference']]);
    const points = (column) => () => (groupsPast.get(key)?.points ?? []).map((point) => [point[0], point[column]]);
    const backlog = chart('Backlog', number, [{ name: 'messages', points: points(1) }]);
    const flow = chart('Messages a second', number, [{ name: 'arrive', points: points(2) }, { name: 'can be completed', points: points(3) }]);
    const dots = dotChart();
    const makeRow = ({ client }) => {
        const parts = PARTS.map((_, at) => el('i', { class: `p${at}` }));
        const button = el('button', { onclick: async () => {
            const isDraining = button.textContent === 'Resume';
            await change(isDraining ? 'DELETE' : 'POST', `${where}/members/${encodeURIComponent(client)}/drain`, `${button.textContent} ${named(client)}`);
        } });
        const spark = el('path', { class: 'line c0' });
        const row = el('li', {}, el('span', { class: 'name', title: client }, el('a', { href: `#client/${path(client)}` }, el('span', { class: 'shared' }), el('span', { class: 'own' }))), el('span', { class: 'state' }, el('span', { class: 'badge' })), el('span', { class: 'bar', role: 'img' }, ...parts),
            el('span', { class: 'wait' }), el('span', { class: 'spark' }, el('span'), el('svg', { viewBox: '0 0 100 40', height: 22, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, spark)), el('span', { class: 'share' }), el('span', { class: 'act' }, button));
        return Object.assign(row, { parts, spark, button });
    };
    const show = (value, at) => {
        shown = value;
        const most = ceiling(Math.max(...value.members.map((member) => member.predicted_wait_ms), 1));
        write(axis, `full width: ${time(most)}`);
        list.dataset.mostMs = most;
        const pasts = groupsPast.get(key)?.members;
        const own = ownParts(value.members.map(({ client }) => client));
        keep(list, value.members, ({ client }) => client, makeRow, (row, member) => {
            const badge = row.querySelector('.badge');
            row.dataset.client = member.client;
            write(row.querySelector('.shared'), member.client.slice(0, own.get(member.client)));
            write(row.querySelector('.own'), named(member.client).slice(own.get(member.client)));
            badge.className = `badge ${member.state}`;
            write(badge, member.state);
            PARTS.forEach(([part], index) => { row.parts[index].style.width = `${(100 * member[part]) / most}%`; });
            const [wait, bar] = [row.querySelector('.wait'), row.querySelector('.bar')];
            write(wait, time(member.predicted_wait_ms));
            bar.dataset.waitMs = member.predicted_wait_ms;
            bar.setAttribute('aria-label', `predicted wait ${time(member.predicted_wait_ms)}: ${PARTS.map(([part, text]) => `${time(member[part])} ${text}`).join(', ')}`);
            bar.title = bar.getAttribute('aria-label');
            const speeds = pasts?.get(member.client) ?? [];
            row.spark.setAttribute('d', lineOf(speeds, at, Math.max(...speeds.map(([, value]) => value), 1e-3)));
            write(row.querySelector('.spark').firstChild, `processing time ${processing(member)}`);
            write(row.querySelector('.share'), `gets ${percent(member.share)}`);
            write(row.button, member.state === 'draining' ? 'Resume' : 'Drain');
        });
        rows.update();
        const { scale, shadow } = value;
        facts.fill(value.is_ordered ? `${value.policy}, by key` : value.policy, `${number(scale.backlog)} messages`, scale.members, wanted(scale), `${number(scale.arrivals_per_second)}/s`,
            scale.completions_per_second === null ? 'unknown' : `${number(scale.completions_per_second)}/s`, drainTime(scale), shadow ? `${shadow.shadow}, agrees in ${percent(shadow.agreement)} of ${number(shadow.compared)}` : 'none',
            shadow ? `${time(Math.abs(shadow.wait_difference_ms_mean))} ${shadow.wait_difference_ms_mean > 0 ? 'longer' : 'shorter'} wait a message` : '–');
        backlog.update(at);
        flow.update(at);
        dots.update(at, value.members.map(({ client }) => client));
    };
    const element = el('div', { class: 'group' }, missing,
        el('section', { class: 'card' }, el('h3', {}, 'Predicted wait of each member'), legend, list, rows.element),
        dots.element,
        el('aside', { class: 'aside', 'aria-label': 'Scale' }, el('section', { class: 'card' }, facts.element), backlog.element, flow.element));
    return { title: `Group ${named(name)}`, note: filter, element, query: `?group=${encodeURIComponent(name)}&filter=${encodeURIComponent(filter)}`, async update(snapshot) {
        let value = snapshot.groups.find((each) => groupKey(each) === key);
        try {
            // Beyond the groups of a snapshot.
            if (!value) rememberGroup(value = await read(where), snapshot.time_ms);
            missing.hidden = true;
            show(value, snapshot.time_ms);
        } catch (error) {
            missing.hidden = false;
            write(missing, error.message);
        }
    } };
}

const PARTS = [['wait_at_client_ms', 'at the client'], ['wait_in_flight_ms', 'in flight'], ['wait_queued_ms', 'waiting here']];
const processing = (member) => (member.processing_time_ms === 0 ? 'unknown' : `${member.is_speed_known ? '' : '≈ '}${time(member.processing_time_ms)}`);
// A dot's shape tells the reason, and so does its colour.
const SHAPES = ['M-4-4H4V4H-4Z', 'M0-5.5L5 4H-5Z', 'M0-5.5L5.5 0 0 5.5-5.5 0Z', 'M-4.5-1.5H-1.5V-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5Z', 'M0-4.5A4.5 4.5 0 1 1-.01-4.5Z', 'M0 5.5L5-4H-5Z'];

// Those of one policy follow each other, so that their shapes differ.
const REASONS = ['least_wait', 'oldest_turn', 'probe', 'only_candidate', 'overtaken', 'best_of_sample', 'key', 'score', 'turn', 'random', 'hash', 'least_in_flight', 'least_response_time', 'trial'];

// Decisions of the last minute: time to the right, members below each other.
function dotChart() {
    const shapeOf = (reason) => Math.max(0, REASONS.indexOf(reason)) % SHAPES.length;
    let [chosen, lanes, byNumber, now] = [null, [], new Map(), 0];
    const marks = el('g');
    const frame = el('g');
    const svg = el('svg', { role: 'group', tabindex: 0, 'aria-label': 'Decisions of the last minute; the arrow keys choose one' }, frame, marks);
    const legend = el('p', { class: 'legend' });
    const detail = el('div', { 'aria-live': 'polite' });
    const candidates = table(['Candidate', 'State', 'Wait', 'Penalty', 'Processing time', 'Pending', 'In flight', 'Late'], [2, 3, 4, 5, 6, 7]);
    const heading = el('p');
    detail.append(heading, candidates.element);
    candidates.element.hidden = true;
    const rows = asTable(['No.', 'Time', 'Topic', 'Member', 'Reason'], () => decisions.slice(-100).reverse().map((decision) => [decision.number, clock(decision.time_ms), decision.topic, decision.chosen ?? 'nobody', decision.reason.replaceAll('_', ' ')]), [0]);
    const choose = (decision) => {
        if (!decision) return;
        chosen = decision;
        heading.textContent = `No. ${decision.number} at ${clock(decision.time_ms)}: ${decision.topic} went to ${decision.chosen === null ? 'nobody' : named(decision.chosen)}, ${decision.reason.replaceAll('_', ' ')} (${decision.policy}).`;
        candidates.element.hidden = false;
        candidates.fill(decision.candidates.map((each) => Object.assign([named(each.client), each.state, time(each.predicted_wait_ms), time(each.penalty_ms), processing(each), number(each.pending), number(each.in_flight), time(each.late_ms)], { isChosen: each.client === decision.chosen })));
        marks.querySelector('.on')?.classList.remove('on');
        byNumber.get(decision.number)?.classList.add('on');
    };
    const young = () => decisions.filter(({ time_ms: at }) => at > now - DECISIONS_MS);
    svg.addEventListener('click', ({ target }) => choose(decisions.find(({ number: each }) => String(each) === target.dataset?.number)));
    svg.addEventListener('keydown', (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const list = young();
        const at = list.findIndex(({ number: each }) => each === chosen?.number);
        choose(list[at < 0 ? list.length - 1 : Math.min(list.length - 1, Math.max(0, at + step))]);
    });
    const element = el('section', { class: 'card dots' }, el('h3', {}, 'Decisions of the last minute'), legend, svg, detail, rows.element);
    const update = (at, members) => {
        now = at;
        const list = young();
        lanes = [...members, ...(list.some(({ chosen: to }) => to === null) ? [null] : [])];
        const [width, left, lane] = [Math.max(200, svg.clientWidth), 86, 22];
        const height = lanes.length * lane + 20;
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
        svg.setAttribute('height', height);
        const own = ownParts(members);
        frame.replaceChildren(...lanes.flatMap((member, index) => [
            el('text', { x: 0, y: index * lane + 15 }, el('title', {}, member ?? 'nobody'), shortened(named(member ?? 'nobody'), own.get(member) ?? 0, 11)),
            el('line', { class: 'lane', x1: left, x2: width, y1: index * lane + 11, y2: index * lane + 11 })]),
        el('text', { x: left, y: height - 3 }, '60 s ago'), el('text', { x: width, y: height - 3, 'text-anchor': 'end' }, 'now'));
        byNumber = new Map();
        // A mark for each shape and three pixels of a lane: more would lie on each other.
        const places = new Map();
        for (const decision of list) {
            const index = lanes.indexOf(decision.chosen);
            if (index < 0) continue;
            const x = left + 6 + (1 - (at - decision.time_ms) / DECISIONS_MS) * (width - left - 12);
            places.set(`${index} ${Math.round(x / 3)} ${shapeOf(decision.reason)}`, { decision, x: Math.min(x, width - 6), y: index * lane + 11 });
        }
        marks.replaceChildren(...[...places.values()].map(({ decision, x, y }) => {
            const shape = shapeOf(decision.reason);
            const mark = el('path', { class: `dot r${shape}${decision.number === chosen?.number ? ' on' : ''}`, d: SHAPES[shape], transform: `translate(${x.toFixed(1)} ${y})`, 'data-number': decision.number });
            byNumber.set(decision.number, mark);
            return mark;
        }));
        keep(legend, [...new Set(list.map(({ reason }) => reason))].toSorted((a, b) => REASONS.indexOf(a) - REASONS.indexOf(b)), (reason) => reason, (reason) => el('span', {}, el('span', { class: 'key' }, el('svg', { viewBox: '-6 -6 12 12', 'aria-hidden': 'true' }, el('path', { class: `dot r${shapeOf(reason)}`, d: SHAPES[shapeOf(reason)] }))), reason.replaceAll('_', ' ')), () => {});
        if (!chosen) write(heading, list.length === 0 ? 'No decision in the last minute.' : 'A click on a mark shows the candidates.');
        rows.update();
    };
    return { element, update };
}

// A list that the broker gives in pages, by the fields of a form.
function paged(where, form, heads, numeric, row, empty) {
    const { element, fill } = table(heads, numeric);
    const note = el('p', { class: 'note', role: 'status' });
    let [items, cursor, turn] = [[], null, 0];
    const load = async (after) => {
        const own = ++turn;
        const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ''));
        if (after) query.set('cursor', after);
        try {
            const page = await read(`${where}?${query}`);
            if (own !== turn) return;
            items = after ? [...items, ...page.items] : page.items;
            cursor = page.cursor;
            fill(items.map(row));
            write(note, items.length === 0 && !cursor ? empty : `${number(items.length)} shown`);
        } catch (error) {
            if (own === turn) write(note, error.message);
        }
        more.hidden = !cursor;
    };
    const more = el('button', { hidden: true, onclick: () => load(cursor) }, 'More');
    form.addEventListener('submit', (event) => { event.preventDefault(); load(); });
    form.addEventListener('input', () => load());
    load();
    // The first page stays up to date.
    let seconds = 0;
    return { element: el('div', {}, form, element, note, more), update: () => { if (++seconds % 5 === 0 && items.length <= 100 && !document.hidden) load(); } };
}

function clients() {
    const states = ['connected', 'offline', 'ready', 'blocked', 'slow', 'spilling'];
    const form = el('form', { class: 'filter', role: 'search' }, el('label', {}, 'Client Identifier has', el('input', { name: 'client', autocomplete: 'off' })),
        el('label', {}, 'State', el('select', { name: 'state' }, el('option', { value: '' }, 'any'), ...states.map((state) => el('option', {}, state)))),
        el('label', { class: 'check' }, el('input', { type: 'checkbox', name: 'slow', value: 'true' }), 'slow only'));
    return { title: 'Clients', ...paged('/api/v1/clients', form, CLIENT_HEADS, CLIENT_NUMERIC, clientRow, 'No client.') };
}

const CLIENT_HEADS = ['Client', 'State', 'User', 'Address', 'Listener', 'In memory', 'On disk', 'Groups'];
const CLIENT_NUMERIC = [5, 6, 7];
const clientRow = (client) => [link('client', named(client.client), client.client), client.state + (client.slow && !['slow', 'spilling'].includes(client.state) ? ', slow' : ''), client.user ?? 'anonymous', client.connection?.peer ?? '–', client.listener,
    `${number(client.queued_messages)} · ${bytes(client.queued_bytes)}`, `${number(client.disk_messages)} · ${bytes(client.disk_bytes)}`, number(client.groups)];

function client(id) {
    const where = `/api/v1/clients/${encodeURIComponent(id)}`;
    const facts = terms([['State'], ['User'], ['Listener'], ['Connection'], ['Connected for'], ['In flight'], ['In memory'], ['On disk'], ['Session ends in'], ['Subscriptions'], ['Share groups']]);
    const ends = el('input', { type: 'checkbox' });
    const note = el('p', { role: 'status' });
    const kick = el('button', { class: 'bad', onclick: async () => {
        const done = await change('DELETE', `${where}?session=${ends.checked}`, `End the connection of ${named(id)}`);
        if (done) write(note, `${done.connected ? 'The connection has ended.' : 'There was no connection.'}${done.session_ended ? ' The session has ended.' : ''}`);
        load();
    } }, 'End the connection');
    const form = el('form', { class: 'filter' });
    const subscriptions = paged(`${where}/subscriptions`, form, ['Topic Filter', 'QoS', 'Identifier', 'Options'], [1, 2], (each) => [each.filter, each.qos, each.identifier ?? '–', [each.no_local && 'No Local', each.retain_as_published && 'Retain As Published'].filter(Boolean).join(', ') || '–'], 'No subscription.');
    const load = async () => {
        try {
            const value = await read(where);
            const { connection } = value;
            facts.fill(value.state + (value.slow ? ', slow' : ''), value.user ?? 'anonymous', value.listener, connection ? `${connection.peer}, ${connection.transport}, MQTT ${connection.version}, Keep Alive ${connection.keep_alive_seconds} s` : 'none', connection ? time(connection.seconds * 1000) : '–',
                `${number(value.in_flight_messages)} · ${bytes(value.in_flight_bytes)}`, `${number(value.queued_messages)} · ${bytes(value.queued_bytes)}`, `${number(value.disk_messages)} · ${bytes(value.disk_bytes)}`,
                value.expires_in_seconds === null ? '–' : time(value.expires_in_seconds * 1000), number(value.subscriptions), number(value.groups));
        } catch (error) {
            write(note, error.message);
        }
    };
    load();
    let seconds = 0;
    return { title: `Client ${named(id)}`, element: el('div', {}, el('section', { class: 'card' }, facts.element, el('p', {}, kick, ' ', el('label', {}, ends, ' and its session')), note), el('h2', {}, 'Subscriptions'), subscriptions.element), update() {
        if (++seconds % 2 === 0 && !document.hidden) load();
        subscriptions.update();
    } };
}

function slow() {
    const { element, fill } = table(CLIENT_HEADS, CLIENT_NUMERIC);
    const note = el('p', { class: 'note' });
    const figures = chart('Slow receivers', number, [{ name: 'watched', points: figure((s) => s.slow.watch) }, { name: 'spilling to disk', points: figure((s) => s.slow.spooling) }]);
    return { title: 'Slow receivers', element: el('div', {}, element, note, el('div', { class: 'cards' }, figures.element)), update(snapshot) {
        fill(snapshot.slow.clients.map(clientRow));
        write(note, snapshot.slow.clients.length === 0 ? 'No receiver is slow.' : 'Their messages arrive faster than they take them. At most 50 are shown.');
        figures.update(snapshot.time_ms);
    } };
}

function store() {
    const facts = terms([['Directory'], ['State'], ['Messages'], ['Waiting'], ['In use'], ['Bound'], ['Free on the disk'], ['Commits'], ['Mean commit time']]);
    const note = el('p');
    const charts = [chart('Commit time', time, [{ name: 'mean of a second', points: figure(commitTime) }]),
        chart('Commits a second', number, [{ name: 'commits', points: figure(({ store: now }, before) => (now && before?.store ? now.commits - before.store.commits : null)) }]),
        chart('Messages on disk', number, [{ name: 'not delivered', points: figure((s) => s.store?.waiting_messages) }])];
    const card = el('section', { class: 'card', hidden: true }, facts.element);
    return { title: 'Store', element: el('div', {}, note, card, el('p'), el('div', { class: 'cards' }, ...charts.map(({ element }) => element))), update(snapshot) {
        const value = snapshot.store;
        card.hidden = !value;
        write(note, value ? '' : 'The broker stores nothing: it has no data directory.');
        if (value) facts.fill(value.directory, value.state_health, value.messages_health, `${number(value.waiting_messages)} messages, ${bytes(value.waiting_bytes)}`, bytes(value.used_bytes), value.maximum_bytes === 0 ? 'none' : bytes(value.maximum_bytes), bytes(value.free_bytes), number(value.commits), time(value.commit_ms));
        charts.forEach((each) => each.update(snapshot.time_ms));
    } };
}

function retained() {
    const form = el('form', { class: 'filter', role: 'search' }, el('label', {}, 'Topic Filter', el('input', { name: 'filter', autocomplete: 'off', placeholder: '#' })));
    return { title: 'Retained messages', ...paged('/api/v1/retained', form, ['Topic', 'QoS', 'Size', 'Expires in'], [1, 2, 3], (each) => [each.topic, each.qos, bytes(each.bytes), each.expires_in_seconds === null ? 'never' : time(each.expires_in_seconds * 1000)], 'No retained message.') };
}

// ---- Which view ----

// Packets as they come and go, the newest first.
function trace() {
    const [client, topic] = ['client', 'topic'].map((name) => el('input', { name, autocomplete: 'off', spellcheck: 'false' }));
    const start = el('button', {}, 'Begin');
    const form = el('form', { class: 'filter' }, el('label', {}, 'Client Identifier', client), el('label', {}, 'or Topic Filter', topic), start);
    const note = el('p', { class: 'note', role: 'status' }, 'A trace shows the packets of one client, or PUBLISH packets by topic, without payloads. It needs the token of an operator.');
    const { element, fill } = table(['Time', 'Direction', 'Client', 'Packet', 'Topic', 'QoS', 'Identifier', 'Reason', 'Size'], [5, 6, 7, 8]);
    let [running, packets, seen, missing, changed] = [null, [], 0, 0, false];
    const stop = () => { running?.abort(); running = null; write(start, 'Begin'); };
    const show = () => {
        changed = false;
        fill(packets.map(({ time_ms: at, direction, client: id, packet, topic: of, filters, qos, packet_id: identifier, reason, bytes: size }) => [
            `${clock(at)}.${String(at % 1000).padStart(3, '0')}`, direction, named(id), packet, of ?? (filters.join(', ') || '–'), qos ?? '–', identifier ?? '–', reason === null ? '–' : `0x${reason.toString(16).padStart(2, '0')}`, size === null ? '–' : bytes(size)]));
        write(note, `${number(seen)} packets${seen > packets.length ? `, the last ${packets.length} are shown` : ''}${missing > 0 ? `; ${number(missing)} are missing, since they came too fast` : ''}${running ? '' : '. The trace is over.'}`);
    };
    const run = async () => {
        const own = running = new AbortController();
        write(start, 'End');
        [packets, seen, missing] = [[], 0, 0];
        const where = `/api/v1/trace?${client.value !== '' ? 'client' : 'topic'}=${encodeURIComponent(client.value !== '' ? client.value : topic.value)}`;
        let why = 'A trace shows topics and clients. It needs the token of an operator.';
        while (running === own) {
            try {
                if (!token && !await askToken('Trace', why)) break;
                const answer = await request(where, { signal: own.signal });
                show();
                await events(answer, (each) => {
                    if (each.dropped) missing += each.dropped;
                    else if (each.packet) { seen++; packets.unshift(each); packets.length = Math.min(packets.length, PACKETS_SHOWN); }
                    if (!changed) { changed = true; requestAnimationFrame(show); }
                });
            } catch (error) {
                if (own.signal.aborted) break;
                if (error.status === 401 || error.status === 403) { [token, why] = ['', error.message]; continue; }
                stop();
                write(note, error.message);
                return;
            }
        }
        if (running === own) stop();
        show();
    };
    form.addEventListener('submit', (event) => {
        event.preventDefault();
        if (running) stop();
        else if ((client.value === '') === (topic.value === '')) write(note, 'A trace needs either a Client Identifier or a Topic Filter.');
        else run();
    });
    return { title: 'Trace', element: el('div', {}, form, note, element), close: stop };
}

const VIEWS = { '': [overview, 0], cluster: [cluster, 0], groups: [groups, 0], group: [group, 2], clients: [clients, 0], client: [client, 1], slow: [slow, 0], store: [store, 0], retained: [retained, 0], trace: [trace, 0], events: [eventsView, 0] };
let view = {};
let query = null;

function open() {
    const [name, ...rest] = location.hash.slice(1).split('/');
    const [make, parts] = VIEWS[name] ?? VIEWS[''];
    let of = [];
    try { of = rest.map(decodeURIComponent); } catch { /* no view of ours has such an address */ }
    view.close?.();
    view = isStandby ? cluster() : of.length === parts ? make(...of) : overview();
    MAIN.replaceChildren(el('h2', {}, view.title), ...(view.note ? [el('p', { class: 'soft' }, view.note)] : []), view.element);
    document.title = `${view.title} · Tenbin`;
    const section = isStandby ? 'cluster' : { group: 'groups', client: 'clients' }[name] ?? name;
    document.querySelectorAll('nav a').forEach((a) => (a.hash.slice(1) === section ? a.setAttribute('aria-current', 'page') : a.removeAttribute('aria-current')));
    if (latest) view.update?.(latest);
    if (query !== (view.query ?? '')) follow(query = view.query ?? '');
}

document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); MAIN.focus(); });
document.querySelector('#token-cancel').addEventListener('click', () => document.querySelector('#token').close());
addEventListener('hashchange', () => { open(); MAIN.focus(); });
open();
