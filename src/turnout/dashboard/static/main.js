// Routes, keys, theme and live updates: asks for what the visible page needs, and draws it again when that changes.
import { drawAll } from './charts.js';
import { fill, h } from './dom.js';
import { afterTyping, badge, noRounds, steer } from './parts.js';
import { chooseRun, showRun } from './runs.js';
import { count, progress, short } from './words.js';
import client from './client.js';
import compare from './compare.js';
import fairness from './fairness.js';
import overview from './overview.js';
import queues from './queues.js';
import rounds from './rounds.js';
import speed from './speed.js';
import system from './system.js';
import training from './training.js';
import turns from './turns.js';

const PAGES = [overview, fairness, queues, turns, speed, rounds, client, training, compare, system];
const at = (id) => document.getElementById(id);
const live = { version: null, reading: null, trouble: null, live: false, connected: null };
let route = { page: overview, settings: {} };
let slots = {};
const store = {};
const ANEW = -1; // the version of an answer that must be asked for again at once

// ---- addresses: everything that is chosen stands in the hash

function address(page, settings = {}) {
  const kept = route.settings.run ? { run: route.settings.run } : {};
  const query = new URLSearchParams(
    Object.entries({ ...kept, ...settings }).filter(([, value]) => value != null && value !== ''));
  return `#/${page}${query.size ? `?${query}` : ''}`;
}

function readAddress() {
  const [name, query] = location.hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const page = PAGES.find((one) => one.name === name) ?? overview;
  return { page, settings: Object.fromEntries(new URLSearchParams(query ?? '')) };
}

function go(changes, { replace = false } = {}) {
  const hash = address(route.page.name, { ...route.settings, ...changes });
  if (hash === location.hash) return;
  if (!replace) {
    location.hash = hash;
    return;
  }
  history.replaceState(null, '', hash);
  arrive();
}

function arrive() {
  const before = route;
  route = readAddress();
  const moved =
    before.page !== route.page ||
    before.settings.run !== route.settings.run ||
    (route.page.about ?? []).some((name) => before.settings[name] !== route.settings[name]);
  if (moved) {
    Object.values(slots).forEach((slot) => slot.stop?.abort());
    slots = {};
    window.scrollTo(0, 0);
    if (document.activeElement?.closest('nav, main')) at('main').focus({ preventScroll: true });
  }
  load();
  render();
}

// ---- asking

async function ask(slot, url, fixed) {
  slot.stop?.abort();
  Object.assign(slot, { waiting: url, stop: new AbortController(), old: slot.url !== url });
  const { version } = live;
  const { signal } = slot.stop;
  try {
    const response = await fetch(url, { signal, headers: { Accept: 'application/json' } });
    const told = await response
      .json()
      .catch(() => ({ error: `The server answered ${response.status} without words.` }));
    if (signal.aborted) return;
    if (!response.ok) throw new Error(told.error ?? `The server answered ${response.status}.`);
    Object.assign(slot, { data: told, error: null });
  } catch (error) {
    if (signal.aborted) return;
    slot.error =
      error instanceof TypeError
        ? 'The server does not answer. It is asked again as soon as the connection is back.'
        : error.message;
  }
  const newest = Math.max(version ?? 0, slot.data?.about?.version ?? slot.data?.version ?? 0);
  Object.assign(slot, {
    url, version: slot.error ? (version ?? 0) : fixed ? Infinity : newest, waiting: null, old: false,
  });
  render();
  load();
}

/** Starts asking for whatever is missing or older than the newest version. */
function load() {
  const wanted = { ...route.page.asks(route.settings, slots) };
  const run = route.settings.run;
  const due = (slot, url) =>
    slot.waiting !== url && (slot.url !== url || slot.version < (live.version ?? 0) || slot.version === ANEW);
  if (due(store, '/api/store') && !store.waiting) refresh(store, '/api/store');
  for (const [name, told] of Object.entries(wanted)) {
    const { path, fixed, ...query } = told;
    const asked = new URLSearchParams(
      Object.entries({ ...query, run }).filter(([, value]) => value != null && value !== ''));
    const url = `/api/${path ?? name}${asked.size ? `?${asked}` : ''}`;
    slots[name] ??= {};
    if (due(slots[name], url)) refresh(slots[name], url, fixed);
  }
  for (const name of Object.keys(slots)) if (!(name in wanted)) delete slots[name];
}

/** At once for another question; for a newer answer to the same one, once a second and only while someone looks. */
let last = 0;
let timer = null;
function refresh(slot, url, fixed) {
  if (slot.url !== url || slot.version === ANEW) {
    ask(slot, url, fixed);
    return;
  }
  if (document.hidden || timer) return;
  const wait = last + 1000 - performance.now();
  if (wait <= 0) {
    queueMicrotask(() => {
      last = performance.now();
    });
    ask(slot, url, fixed);
    return;
  }
  timer = setTimeout(() => {
    timer = null;
    load();
  }, wait);
}

function again(slot) {
  for (const one of [slot, store, ...Object.values(slots)]) if (one.error) one.version = ANEW;
  load();
}

// ---- drawing

let planned = false;
function render() {
  if (planned) return;
  planned = true;
  (document.hidden ? setTimeout : requestAnimationFrame)(() => {
    planned = false;
    draw();
  });
}

function draw() {
  const { page, settings } = route;
  const about = Object.values(slots).find((slot) => slot.data?.about)?.data.about;
  drawFrame(about);
  const heading = h('h1', null, page.title?.(settings) ?? page.label,
    about && h('span', { class: 'muted' }, ` ${count(about.clients)} clients, ${progress(about)}`));
  const nothing = about && about.rounds === 0 && !page.without && !slots.overview?.data?.open;
  const inside = nothing ? noRounds(about.reading) : page.view(slots, settings);
  fill(at('page'), h('div', { 'data-key': `${page.name} ${settings.run ?? ''}`, class: 'inside' }, heading, inside));
  page.drawn?.(slots, settings);
  drawAll(at('page'));
}

/** On a phone the pages are a strip: the current one is brought into view. */
function showTab(page) {
  const strip = at('pages').parentElement;
  const tab = at('pages').querySelector('[aria-current]');
  strip.scrollLeft += tab.getBoundingClientRect().left - strip.clientWidth / 2 + tab.offsetWidth / 2;
  at('pages').shown = page;
}

function drawFrame(about) {
  const { page, settings } = route;
  document.title = `${page.title?.(settings) ?? page.label} · ${about?.name ?? store.data?.name ?? ''} · turnout`;
  at('store-name').textContent = store.data ? short(store.data.name, 40) : '';
  fill(at('pages'),
    PAGES.map((one, place) =>
      h('li', null,
        h('a',
          {
            href: address(one.name), 'aria-current': one === page ? 'page' : null,
            'aria-keyshortcuts': String((place + 1) % 10),
          },
          h('kbd', { 'aria-hidden': 'true' }, String((place + 1) % 10)), h('span', null, one.label)))));
  if (at('pages').shown !== page) showTab(page);
  showRun(at('run-button'), store.data, about);
  const told =
    live.connected === null ? 'connecting' : !live.connected ? 'not connected: trying again' : live.live
          ? 'live'
          : 'connected';
  if (at('state').textContent !== told) at('state').textContent = told;
  at('state').className = `state ${live.connected === false ? 'bad' : live.connected && live.live ? 'ok' : ''}`;
  const reading = about ? about.reading : live.reading; // the state of the numbers that are shown
  const wrong = live.connected === null ? store.data?.trouble : live.trouble;
  fill(at('notices'),
    reading &&
      h('div', { class: 'reading', 'data-key': 'reading' },
        h('progress', { max: reading.of, value: reading.done, 'aria-label': 'share of the record that has been read' }),
        h('span', null,
          `Still reading: ${count(reading.done)} of ${count(reading.of)}. The numbers are incomplete.`)),
    wrong &&
      h('div', { class: 'box bad', role: 'alert', 'data-key': 'trouble' }, badge('bad', 'Trouble'), h('p', null, wrong),
      ),
    store.error &&
      !store.data &&
      h('div', { class: 'box bad', role: 'alert', 'data-key': 'store' }, badge('bad', 'No answer'),
        h('p', null, store.error), h('button', { type: 'button', onclick: () => again(store) }, 'Try again')));
}

// ---- live

function listen() {
  const source = new EventSource('/api/live');
  source.addEventListener('change', (event) => {
    const before = { ...live };
    Object.assign(live, JSON.parse(event.data), { connected: true });
    const back = before.connected === false;
    const read = before.reading && !live.reading;
    for (const slot of [store, ...Object.values(slots)]) if (back || (read && slot.error)) slot.version = ANEW;
    render();
    load();
  });
  source.onerror = () => {
    live.connected = false;
    render();
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

setInterval(() => {
  for (const clock of document.querySelectorAll('[data-elapsed]')) {
    clock.since ??= performance.now();
    if (clock.told !== clock.dataset.elapsed)
      Object.assign(clock, { told: clock.dataset.elapsed, since: performance.now() });
    clock.textContent = count(Math.floor(Number(clock.told) + (performance.now() - clock.since) / 1000));
  }
}, 1000);

// ---- theme, search, keys

function theme(wanted) {
  document.documentElement.dataset.theme = wanted;
  at('theme').textContent = wanted === 'dark' ? 'Light' : 'Dark';
  at('theme').setAttribute('aria-label', `Change to the ${wanted === 'dark' ? 'light' : 'dark'} theme`);
  drawAll(at('page'));
}

function toggleTheme() {
  const wanted = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('turnout-theme', wanted); } catch {
    /* storage is refused: it lasts until the page is closed */
  }
  theme(wanted);
}

async function suggest(text) {
  const query = new URLSearchParams({
    search: text, size: 8, sort: 'id', order: 'asc',
    ...(route.settings.run ? { run: route.settings.run } : {}),
  });
  const response = text ? await fetch(`/api/clients?${query}`).catch(() => null) : null;
  const told = response?.ok ? await response.json() : { rows: [] };
  fill(at('search-list'), told.rows.map((row) => h('option', { value: row.id })));
}

const KEYS = [
  ['1 to 9, 0', 'the pages, in their order'], ['/', 'find a client'], ['r', 'choose a run'],
  ['← →', 'the round before or after (Rounds, Client)'], ['t', 'light or dark'], ['?', 'these keys'],
];
const ACTS = {
  '/': () => at('search-box').focus(), t: toggleTheme, '?': () => at('keys').showModal(),
  r: () => !at('run-button').hidden && chooseRun(store.data, address),
};

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector('dialog[open]')) return;
  if (event.target.closest?.('input, select, textarea, [contenteditable]')) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step && !event.target.closest?.('.scroll, nav')) route.page.step?.(step, slots, route.settings);
  else if (/^[0-9]$/.test(event.key)) location.hash = address(PAGES[(Number(event.key) + 9) % 10].name);
  else if (ACTS[event.key]) ACTS[event.key]();
  else return;
  event.preventDefault();
}

function to(page, settings) {
  location.hash = address(page, settings);
}

Object.assign(steer, { go, to, address, again });
addEventListener('hashchange', arrive);
addEventListener('keydown', onKey);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) load();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', (event) => {
  let kept = null;
  try { kept = localStorage.getItem('turnout-theme'); } catch {
    /* nothing is kept */
  }
  if (!kept) theme(event.matches ? 'dark' : 'light');
});
let resizing;
addEventListener('resize', () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => drawAll(at('page')), 200);
});
at('skip').onclick = (event) => {
  event.preventDefault();
  at('main').focus();
};
at('theme').onclick = toggleTheme;
at('help').onclick = ACTS['?'];
at('run-button').onclick = ACTS.r;
at('search-box').oninput = afterTyping(suggest);
at('search').onsubmit = (event) => {
  event.preventDefault();
  const text = at('search-box').value;
  const exact = [...at('search-list').children].some((one) => one.value === text);
  location.hash = address('client', exact ? { id: text } : { search: text });
};
fill(
  at('keys-list'), KEYS.map(([key, words]) => h('div', null, h('dt', null, h('kbd', null, key)), h('dd', null, words))),
);
theme(document.documentElement.dataset.theme);
arrive();
listen();
