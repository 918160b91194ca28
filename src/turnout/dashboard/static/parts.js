// Components of the pages: cards, links, badges, tables, pagers, and placeholders for missing data.
import { h } from './dom.js';
import { info } from './glossary.js';
import { FLAGS, UNKNOWN, columnFormat, count, flagLabel, short, words } from './format.js';

/**
 * Set by main.js: `update(changes)` changes the settings of this page, `open(page, settings)` opens another page,
 * `link(page, settings)` returns its address, `retry(slot)` repeats a failed request, `settings()` are those of the page.
 */
export const navigation = {
  update: () => {}, open: () => {}, link: () => '#/', retry: () => {}, settings: () => ({}),
};

export const clientLink = (id, settings = {}) => id == null
    ? UNKNOWN
    : h('a', { href: navigation.link('client', { id, ...settings }), class: 'id', title: short(id, 400) },
        h('bdi', null, short(id)));
export const roundLink = (round) =>
  round == null ? UNKNOWN : h('a', { href: navigation.link('rounds', { number: round }) }, count(round));

export const card = (label, value, ...more) =>
  h('section', { class: 'card' }, h('h2', { class: 'label' }, label, explained(label)), h('p', { class: 'value' }, value),
    more.filter(Boolean).map((text) => h('p', { class: 'more' }, text)));
/** A red card: something that needs attention now. */
export const alarm = (label, text) =>
  h('section', { class: 'card certificate bad', role: 'alert' }, h('h2', { class: 'label' }, 'Needs attention'),
    h('p', { class: 'value' }, badge('bad', label)), h('p', { class: 'more' }, text));
/** The (i) button of a card whose label contains a term of the glossary. */
const CARD_TERMS = [
  [/mean round/i, 'mean round'], [/furthest behind/i, 'shortfall'], [/smallest share/i, 'smallest share'],
  [/jain/i, 'Jain’s index'], [/^updates/i, 'updates'], [/staleness/i, 'staleness'],
];
function explained(label) {
  const found = CARD_TERMS.find(([pattern]) => pattern.test(label));
  return found && info(found[1]);
}
export function cards(...all) {
  const shown = all.filter(Boolean);
  return h('div', { class: shown.length % 3 ? 'cards' : 'cards thirds' }, shown);
}
export const charts = (...all) => h('div', { class: 'charts' }, all);
export const box = (title, ...inside) => h('section', { class: 'card' }, title && h('h2', null, title), inside);
export const facts = (pairs) =>
  h('dl', { class: 'facts' }, pairs.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
export const muted = (...text) => h('p', { class: 'muted' }, text);

/** A label with a mark: each level differs in shape as well as in colour. */
export function badge(level, text) {
  const mark = { ok: '✓', bad: '✕', warn: '!', none: '–' }[level];
  return h('span', { class: `badge ${level}` }, h('span', { class: 'mark', 'aria-hidden': 'true' }, mark), text);
}

/** The level of a badge and the word for each status of a promise. */
export const STATUSES = { kept: ['ok', 'Kept'], behind: ['warn', 'Behind'], broken: ['bad', 'Broken'] };
const NO_STATUS = ['none', 'No promise'];
export const statusBadge = (status) => badge(...(STATUSES[status] ?? NO_STATUS));

/** A card with the status of a promise; the text begins with the status, which the badge already shows. */
export function certificate({ status, text }) {
  const [level] = STATUSES[status] ?? NO_STATUS;
  return h('section', { class: `card certificate ${level}` }, h('h2', { class: 'label' }, 'Promise', info('promise')),
    h('p', { class: 'value' }, statusBadge(status)), h('p', { class: 'more' }, withoutStatus(status, text)));
}
const withoutStatus = (status, text) =>
  status && text.startsWith(`${status}: `) ? text.slice(status.length + 2) : text;

/** The status of the promise as one line below the heading of every page. */
export const promiseLine = (data) =>
  h('p', { class: 'promise', id: 'promise', 'data-key': 'promise', 'data-status': data.status },
    statusBadge(data.status), h('span', { class: 'muted' }, withoutStatus(data.status, data.text)));

export const flags = (names) =>
  names.map((name) => [h('span', { class: 'flag', title: FLAGS[name] ?? name }, flagLabel(name)), ' ']);
export const flagLegend = (rows) => {
  const seen = Object.keys(FLAGS).filter((name) => rows.some((row) => row.flags.includes(name)));
  return (
    seen.length > 0 &&
    h('dl', { class: 'legend' },
      seen.map((name) =>
        h('div', null, h('dt', null, h('span', { class: 'flag' }, flagLabel(name))), h('dd', null, FLAGS[name]))))
  );
};

export const empty = (title, ...text) => h('div', { class: 'card empty' }, h('h2', null, title), h('p', null, text));
export const emptyRounds = (reading) =>
  reading
    ? empty('The store is still being read.', `This page updates itself when the first ${words.round} has been read.`)
    : words.round === 'round'
      ? empty('No round is recorded yet.', 'This page updates itself when the first round is closed.')
      : empty('No turn is recorded yet.', 'This page updates itself when the first turn is given.');
const skeleton = () =>
  h('div', { class: 'skeletons', role: 'status', 'aria-label': 'Loading' },
    ['', '', ''].map(() => h('div', { class: 'skeleton' })));
const failure = (slot) =>
  h('div', { class: 'box bad', role: 'alert' }, badge('bad', 'Request failed'), h('p', null, slot.error),
    h('button', { type: 'button', onclick: () => navigation.retry(slot) }, 'Try again'));

/** Draws the data of a slot: a skeleton before the first response, the error above the old data after a failure. */
export function renderSlot(slot, draw) {
  const failed = slot?.error && failure(slot);
  if (!slot?.data) return failed || skeleton();
  return [
    failed,
    h('div', { class: slot.old ? 'content old' : 'content', 'aria-busy': slot.old ? 'true' : null },
      tryDraw(slot, draw)),
  ];
}

/** Contains an error in one part, so that the rest of the page is still drawn. */
function tryDraw(slot, draw) {
  try {
    return draw(slot.data);
  } catch (error) {
    console.error(error);
    return failure({ ...slot, error: `This part of the page cannot be drawn: ${error.message}.` });
  }
}

/** The cell of a column: of `numeric` and `duration`, which return values, all cells have the same decimals. */
function cellOf({ cell, numeric, duration }, rows) {
  const value = numeric ?? duration;
  if (!value) return cell;
  const format = columnFormat(rows.map(value), duration != null);
  return (row) => format(value(row));
}

/** The keys of the columns whose visibility the reader has changed; the address contains them. */
const changedColumns = () => new Set((navigation.settings().columns ?? '').split(',').filter(Boolean));
const isShown = ({ key, optional }) => !key || changedColumns().has(key) === Boolean(optional);

/** Boxes to show and hide the columns of a table. */
function columnChoice(columns) {
  const toggle = (key) => {
    const changed = changedColumns();
    if (!changed.delete(key)) changed.add(key);
    navigation.update({ columns: [...changed].join(',') || null }, { replace: true });
  };
  return h('details', { class: 'columns' }, h('summary', null, 'Columns'),
    h('div', { class: 'choice' }, columns.slice(1).filter(({ key }) => key).map((column) =>
      h('label', null,
        h('input', { type: 'checkbox', checked: isShown(column), onchange: () => toggle(column.key) }), ' ', column.label))));
}

/**
 * A table in a scrolling box. A column is {label, cell, key?, text?, title?}: `key` makes it sortable, `text` aligns it
 * left (numbers are aligned right), `info` is a button after the label; `numeric` or `duration` can replace `cell`.
 * `sorted` is {sort, order, by(changes)}. If `choosable`, the reader can choose the columns with a key; `optional` ones
 * are hidden at first.
 */
export function table({ caption, columns: all, rows, sorted, current, none = 'The list is empty.', choosable }) {
  if (!rows.length) return muted(none);
  const columns = (choosable ? all.filter(isShown) : all)
    .map((column) => ({ ...column, cell: cellOf(column, rows) }));
  const head = columns.map(({ key, label, text, title, info }) => {
    const active = sorted && key && sorted.sort === key;
    const next = (active ? sorted.order === 'desc' : text) ? 'asc' : 'desc';
    const arrow = !active ? '↕' : sorted.order === 'desc' ? '↓' : '↑';
    const sort = () => sorted.by({ sort: key, order: next, page: null });
    const inside = !sorted || !key ? label
      : h('button', { type: 'button', class: 'sort', onclick: sort }, label,
        h('span', { 'aria-hidden': 'true' }, `\u00a0${arrow}`));
    const order = active ? `${sorted.order}ending` : null;
    return h('th', { scope: 'col', class: text && 'text', title, 'aria-sort': order }, inside, info);
  });
  const body = rows.map((row) =>
    h('tr', { 'aria-current': current?.(row) ? 'true' : null },
      columns.map(({ cell, text }, index) =>
        h(index ? 'td' : 'th', { class: text && 'text', scope: index ? null : 'row' }, cell(row)))));
  return h('div', { class: 'wide-table' },
    choosable && columnChoice(all),
    h('p', { class: 'hint' }, 'Scroll the table sideways to see all columns.'),
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    h('table', null, h('caption', null, caption), h('thead', null, h('tr', null, head)),
      h('tbody', null, body))));
}

/** Shows a hint above every table that is wider than its box. */
export function hintAtWideTables(root) {
  for (const element of root.querySelectorAll('.wide-table')) {
    const { scrollWidth, clientWidth } = element.querySelector('.scroll');
    element.classList.toggle('cut', scrollWidth > clientWidth + 1);
  }
}

/** Buttons for the pages of a list that the server paginates. */
export function pager({ page, pages, total }, nouns, by = navigation.update, name = 'page') {
  const noun = total === 1 ? nouns.replace(/s$/, '') : nouns;
  const open = (number) => by({ [name]: Math.min(Math.max(1, number || 1), pages) });
  const step = (label, number, disabled) =>
    h('button', { type: 'button', disabled, onclick: () => open(number) }, label);
  if (pages <= 1) return muted(`${count(total)} ${noun}`);
  return h(
    'div', { class: 'pager', role: 'group', 'aria-label': `Pages of ${noun}` }, step('Previous', page - 1, page <= 1),
    step('Next', page + 1, page >= pages),
    pages > 2 &&
      h('label', null, 'Page ',
        h('input', {
          type: 'number', min: 1, max: pages, value: page, onchange: (event) => open(Number(event.target.value)),
        })),
    h('span', { class: 'muted' },
      `${pages > 2 ? '' : `page ${count(page)} `}of ${count(Math.max(1, pages))}, ${count(total)} ${noun}`));
}

/** A row of buttons of which one is pressed. */
export const choice = (label, options, chosen, select) =>
  h('div', { class: 'choice', role: 'group', 'aria-label': label }, h('span', { class: 'muted' }, label),
    options.map(([value, text]) =>
      h('button', { type: 'button', 'aria-pressed': String(value === chosen), onclick: () => select(value) }, text)));

/** The last hours that a chart of a fleet can show, in seconds. */
const TIMES = [['', 'rounds'], ['clock', 'clock time'], ['3600', 'last hour'], ['86400', 'last 24 h'], ['604800', 'last 7 days']];
/** The seconds of which the charts show the rounds; null for all. */
export const sinceOf = ({ time }) => (Number(time) > 0 ? Number(time) : null);
/** The choice of what the axes of charts by round show. */
export const timeChoice = ({ time = '' }) =>
  choice('Axis', TIMES.map(([value, text]) => [value, value ? text : words.rounds]), time,
    (next) => navigation.update({ time: next, zoom: null }));

/** Calls `act` with the input's value 250 ms after the last change. */
let typing;
export const debounce = (act) => (event) => {
  clearTimeout(typing);
  typing = setTimeout(act, 250, event.target.value);
};

export const ORDERS = [
  ['behind', 'turns behind'], ['owed', 'turns owed'], ['turns', 'turns taken'], ['id', 'order of joining'],
];
