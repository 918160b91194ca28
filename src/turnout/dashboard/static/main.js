// Routing, keys, theme and live updates: requests the data of the visible page and redraws it when they change.
import { drawAll, setClock } from './charts.js';
import { fill, h } from './dom.js';
import { badge, debounce, empty, emptyRounds, hintAtWideTables, navigation, promiseLine, sinceOf, timeChoice } from './parts.js';
import { chooseRun, showRun } from './runs.js';
import { showGlossary } from './glossary.js';
import { picksOf, setRuns } from './palette.js';
import { count, plural, progress, setWords, short, words } from './format.js';
import client from './client.js';
import compare from './compare.js';
import fairness from './fairness.js';
import list from './list.js';
import overview from './overview.js';
import queues from './queues.js';
import rounds from './rounds.js';
import speed from './speed.js';
import system from './system.js';
import training from './training.js';
import turns from './turns.js';

/** The pages of the number keys; those of a store of runs begin with the table of runs and with Compare. */
const PAGES = [overview, fairness, queues, turns, speed, rounds, client, training, compare, system];
const OF_RUNS = [list, compare, ...PAGES.filter((page) => page !== compare)];
/** The pages of a store; Queues only if its policy selects by a queue, or if it is open. */
const pagesOf = (data, about) =>
  (data?.kind === 'runs' ? OF_RUNS : PAGES).filter((page) => page !== queues || about?.has_queue || route.page === queues);
const keyOf = (page) => (page === list ? 'l' : String((PAGES.indexOf(page) + 1) % 10));
const at = (id) => document.getElementById(id);
const live = { version: null, reading: null, last_error: null, live: false, connected: null };
const store = {};
let route = { page: overview, settings: {} };
let slots = {};
const OUTDATED = -1; // version of a slot that must be requested again at once

// ---- addresses: the hash contains the page and all its settings

function address(page, settings = {}) {
  const { run, pick, time } = route.settings;
  const kept = { ...(run ? { run } : {}), ...(pick ? { pick } : {}), ...(time ? { time } : {}) };
  const query = new URLSearchParams(
    Object.entries({ ...kept, ...settings }).filter(([, value]) => value != null && value !== ''));
  return `#/${page}${query.size ? `?${query}` : ''}`;
}

function readAddress() {
  const [name, query] = location.hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const page = OF_RUNS.find((candidate) => candidate.name === name) ??
    (name ? unknownPage(name) : store.data ? pagesOf(store.data)[0] : overview);
  return { page, settings: Object.fromEntries(new URLSearchParams(query ?? '')), address: location.hash };
}

const unknownPage = (name) => ({
  name, label: 'Unknown page', isAboutAll: true, worksWithoutRounds: true, requests: () => ({}),
  view: () => empty('There is no such page', `The address names “${short(name, 60)}”. `,
    h('a', { href: address(pagesOf(store.data)[0].name) }, `Open ${pagesOf(store.data)[0].label}`)),
});

function update(changes, { replace = false } = {}) {
  const hash = address(route.page.name, { ...route.settings, ...changes });
  if (hash === location.hash) return;
  if (!replace) location.hash = hash;
  else {
    history.replaceState(null, '', hash);
    onHashChange();
  }
}

function onHashChange() {
  const before = route;
  route = readAddress();
  const isNewPage =
    before.page.name !== route.page.name ||
    before.settings.run !== route.settings.run ||
    (route.page.about ?? []).some((name) => before.settings[name] !== route.settings[name]);
  if (isNewPage) {
    Object.values(slots).forEach((slot) => slot.stop?.abort());
    slots = {};
    window.scrollTo(0, 0);
    if (document.activeElement?.closest('nav, main')) at('main').focus({ preventScroll: true });
  }
  load();
  render();
}

// ---- requests

async function request(slot, url, fixed) {
  slot.stop?.abort();
  Object.assign(slot, { waiting: url, stop: new AbortController(), old: slot.url !== url });
  const { version } = live;
  const { signal } = slot.stop;
  try {
    const response = await fetch(url, { signal, headers: { Accept: 'application/json' } });
    const body = await response
      .json()
      .catch(() => ({ detail: `The server answered ${response.status} without a message.` }));
    if (signal.aborted) return;
    if (!response.ok) throw new Error(body.detail ?? `The server answered ${response.status}.`);
    Object.assign(slot, { data: body, error: null });
  } catch (error) {
    if (signal.aborted) return;
    slot.error =
      error instanceof TypeError
        ? 'The server does not respond. The request is repeated when the connection is back.'
        : error.message;
  }
  const newest = Math.max(version ?? 0, slot.data?.about?.version ?? slot.data?.version ?? 0);
  Object.assign(slot, {
    url, version: slot.error ? (version ?? 0) : fixed ? Infinity : newest, waiting: null, old: false,
  });
  if (slot === store && !location.hash && store.data) route = readAddress();
  render();
  load();
}

/** Requests all data that are missing or older than the newest version. */
function load() {
  // The first page depends on the store, unless the address names a page.
  const requested = location.hash || store.data ? { ...route.page.requests(route.settings, slots) } : {};
  const run = route.settings.run;
  const due = (slot, url) =>
    slot.waiting !== url && (slot.url !== url || slot.version < (live.version ?? 0) || slot.version === OUTDATED);
  if (due(store, 'api/store') && !store.waiting) refresh(store, 'api/store');
  if (route.page.isIncomplete?.(slots) && !slots.runs.waiting) slots.runs.version = OUTDATED;
  for (const [name, { path, fixed, ...settings }] of Object.entries(requested)) {
    const query = new URLSearchParams(
      Object.entries({ ...settings, run }).filter(([, value]) => value != null && value !== ''));
    const url = `api/${path ?? name}${query.size ? `?${query}` : ''}`;
    slots[name] ??= {};
    if (due(slots[name], url)) refresh(slots[name], url, fixed);
  }
  for (const name of Object.keys(slots)) if (!(name in requested)) delete slots[name];
}

/** Sends a new request at once, and repeats the same request at most once per second while the page is visible. */
let lastRequest = 0;
let timer = null;
function refresh(slot, url, fixed) {
  if (slot.url !== url || slot.version === OUTDATED) {
    request(slot, url, fixed);
    return;
  }
  if (document.hidden || timer) return;
  const wait = lastRequest + 1000 - performance.now();
  if (wait <= 0) {
    queueMicrotask(() => { lastRequest = performance.now(); });
    request(slot, url, fixed);
    return;
  }
  timer = setTimeout(() => {
    timer = null;
    load();
  }, wait);
}

function retry(slot) {
  for (const failed of [slot, store, ...Object.values(slots)]) if (failed.error) failed.version = OUTDATED;
  load();
}

// ---- drawing

let isScheduled = false;
function render() {
  if (isScheduled) return;
  isScheduled = true;
  (document.hidden ? setTimeout : requestAnimationFrame)(() => {
    isScheduled = false;
    draw();
  });
}

function draw() {
  const { page, settings } = route;
  const about = Object.values(slots).find((slot) => slot.data?.about)?.data.about;
  if (about) setWords(about);
  setClock(settings.time && about?.clock ? { ...about.clock, since: sinceOf(settings) } : null);
  setRuns(store.data?.runs ?? [], picksOf(settings), about?.run);
  drawFrame(about);
  const heading = h('h1', null, titleOf(page, settings),
    about && !page.isAboutAll &&
      h('span', { class: 'muted' }, ` ${plural(about.clients, 'client')}, ${progress(about)}`));
  const isEmpty = about && about.rounds === 0 && !page.worksWithoutRounds && !slots.overview?.data?.open;
  const content = isEmpty ? emptyRounds(about.reading) : page.view(slots, settings);
  const promise = about && !page.isAboutAll && page !== compare && promiseLine(about.certificate);
  fill(at('page'),
    h('div',
      {
        'data-key': `${page.name} ${settings.run ?? ''}`, 'data-address': route.address,
        'data-preliminary': isPreliminary(page), class: 'inside',
      },
      heading, promise, about?.clock && page.isByRound?.(settings) && timeChoice(settings), content));
  page.drawn?.(slots, settings);
  hintAtWideTables(at('page'));
  drawAll(at('page'));
}

/** Whether the page shows less than there will be: some data are requested or computed, or records are still read. */
const isPreliminary = (page) =>
  page.isIncomplete?.(slots) ||
  Object.values(slots).some((slot) =>
    !(slot.data || slot.error) || (slot.version !== Infinity && slot.data?.about?.reading));

/** The page of rounds is that of decisions if there are no rounds. */
const labelOf = (page) => (page.name === 'rounds' ? words.Rounds : page.label);
const titleOf = (page, settings) => page.title?.(settings) ?? labelOf(page);

/** Scrolls the strip of pages on a phone to the current page. */
function showTab(page) {
  const strip = at('pages').parentElement;
  const tab = at('pages').querySelector('[aria-current]');
  if (!tab) return;
  strip.scrollLeft += tab.getBoundingClientRect().left - strip.clientWidth / 2 + tab.offsetWidth / 2;
  at('pages').shown = page;
}

function drawFrame(about) {
  const { page, settings } = route;
  document.title = `${titleOf(page, settings)} · ${about?.name ?? store.data?.name ?? ''} · turnout`;
  at('store-name').textContent = store.data ? short(store.data.name, 40) : '';
  fill(at('pages'),
    pagesOf(store.data, about).map((other) =>
      h('li', null,
        h('a',
          {
            href: address(other.name), 'aria-current': other === page ? 'page' : null,
            'aria-keyshortcuts': keyOf(other),
          },
          h('kbd', { 'aria-hidden': 'true' }, keyOf(other)), h('span', null, labelOf(other))))));
  if (at('pages').shown !== page) showTab(page);
  showRun(at('run-button'), store.data, about);
  const state =
    live.connected === null ? 'connecting' : !live.connected ? 'not connected, retrying' : live.live ? 'live' : 'connected';
  if (at('state').textContent !== state) at('state').textContent = state;
  at('state').className = `state ${live.connected === false ? 'bad' : live.connected && live.live ? 'ok' : ''}`;
  const reading = about ? about.reading : live.reading; // the progress of the data that are shown
  const last_error = live.connected === null ? store.data?.last_error : live.last_error;
  fill(at('notices'),
    reading &&
      h('div', { class: 'reading', 'data-key': 'reading' },
        h('progress',
          { max: reading.of, value: reading.done, 'aria-label': 'share of the records that have been read' }),
        h('span', null,
          `Still reading: ${count(reading.done)} of ${count(reading.of)} records. All numbers are preliminary.`)),
    last_error &&
      h('div', { class: 'box bad', role: 'alert', 'data-key': 'unreadable' }, badge('bad', 'The store cannot be read'),
        h('p', null, last_error)),
    store.error &&
      !store.data &&
      h('div', { class: 'box bad', role: 'alert', 'data-key': 'store' }, badge('bad', 'Request failed'),
        h('p', null, store.error), h('button', { type: 'button', onclick: () => retry(store) }, 'Try again')));
}

// ---- live

function listen() {
  const source = new EventSource('api/live');
  source.addEventListener('change', (event) => {
    const before = { ...live };
    Object.assign(live, JSON.parse(event.data), { connected: true });
    const isReconnected = before.connected === false;
    const isComplete = before.reading && !live.reading;
    for (const slot of [store, ...Object.values(slots)])
      if (isReconnected || (isComplete && slot.error)) slot.version = OUTDATED;
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
    if (clock.elapsed !== clock.dataset.elapsed)
      Object.assign(clock, { elapsed: clock.dataset.elapsed, since: performance.now() });
    const elapsed = Number(clock.elapsed) + (performance.now() - clock.since) / 1000;
    clock.textContent = count(Math.floor(elapsed));
    // Nothing changes in the file of a server that is down: the page asks again when its round is overdue.
    if (clock.dataset.due && Number(clock.elapsed) <= Number(clock.dataset.due) && elapsed > Number(clock.dataset.due)) {
      for (const slot of Object.values(slots)) slot.version = OUTDATED;
      load();
    }
  }
}, 1000);

// ---- theme, search, keys

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at('theme').textContent = theme === 'dark' ? 'Light' : 'Dark';
  at('theme').setAttribute('aria-label', `Change to the ${theme === 'dark' ? 'light' : 'dark'} theme`);
  drawAll(at('page'));
}

function toggleTheme() {
  const theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('turnout-theme', theme); } catch {
    /* storage is blocked: the choice lasts until the page is closed */
  }
  setTheme(theme);
}

async function suggest(text) {
  const query = new URLSearchParams({
    search: text, size: 8, sort: 'id', order: 'asc',
    ...(route.settings.run ? { run: route.settings.run } : {}),
  });
  const response = text ? await fetch(`api/clients?${query}`).catch(() => null) : null;
  const matches = response?.ok ? await response.json() : { rows: [] };
  fill(at('search-list'), matches.rows.map((row) => h('option', { value: row.id })));
}

const KEYS = [
  ['1 to 9, 0', 'open a page'], ['/', 'find a client'], ['r', 'choose a run'], ['l', 'list all runs'],
  ['g', 'open the glossary'],
  ['← →', 'previous or next round or decision (on Rounds, Decisions and Client)'], ['t', 'toggle light and dark theme'],
  ['?', 'show this list'],
];
const ACTIONS = {
  '/': () => at('search-box').focus(), t: toggleTheme, '?': () => at('keys').showModal(),
  r: () => !at('run-button').hidden && chooseRun(store.data, address),
  l: () => { if (store.data?.kind === 'runs') location.hash = address('runs'); },
  g: () => showGlossary(),
};

/** Copies the address, which contains the page, its settings and the picked runs. */
async function copyLink() {
  const said = (text) => {
    at('copy').textContent = text;
    setTimeout(() => { at('copy').textContent = 'Link'; }, 2000);
  };
  if (!location.hash) history.replaceState(null, '', address(route.page.name, route.settings));
  try {
    await navigator.clipboard.writeText(location.href);
    said('Copied');
  } catch {
    said('See address bar'); // the browser does not allow pages without TLS to copy
  }
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector('dialog[open]')) return;
  if (event.target.closest?.('input, select, textarea, [contenteditable]')) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step && !event.target.closest?.('.scroll, nav')) route.page.step?.(step, slots, route.settings);
  else if (/^[0-9]$/.test(event.key)) location.hash = address(PAGES[(Number(event.key) + 9) % 10].name);
  else if (ACTIONS[event.key]) ACTIONS[event.key]();
  else return;
  event.preventDefault();
}

const open = (page, settings) => { location.hash = address(page, settings); };

Object.assign(navigation, { update, open, link: address, retry, settings: () => route.settings });
addEventListener('hashchange', onHashChange);
addEventListener('keydown', onKey);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) load();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', (event) => {
  let stored = null;
  try { stored = localStorage.getItem('turnout-theme'); } catch {
    /* storage is blocked: there is no stored choice */
  }
  if (!stored) setTheme(event.matches ? 'dark' : 'light');
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
at('copy').onclick = copyLink;
at('terms').onclick = ACTIONS.g;
at('help').onclick = ACTIONS['?'];
at('run-button').onclick = ACTIONS.r;
at('search-box').oninput = debounce(suggest);
at('search').onsubmit = (event) => {
  event.preventDefault();
  const text = at('search-box').value;
  const exact = [...at('search-list').children].some((option) => option.value === text);
  location.hash = address('client', exact ? { id: text } : { search: text });
};
fill(
  at('keys-list'), KEYS.map(([key, text]) => h('div', null, h('dt', null, h('kbd', null, key)), h('dd', null, text))),
);
setTheme(document.documentElement.dataset.theme);
onHashChange();
listen();
