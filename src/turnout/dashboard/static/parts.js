// The parts that pages are made of: cards, links, badges, tables with a pager, and what stands where nothing is yet.
import { h } from './dom.js';
import { FLAGS, UNKNOWN, count, short } from './words.js';

/**
 * Set by main.js: `go(changes)` changes what is chosen on this page, `to(page, settings)` leads to another one,
 * `address(page, settings)` writes its address, `again(slot)` asks the server anew.
 */
export const steer = { go: () => {}, to: () => {}, address: () => '#/', again: () => {} };

export const clientLink = (id, settings = {}) => id == null
    ? UNKNOWN
    : h('a', { href: steer.address('client', { id, ...settings }), class: 'id', title: short(id, 400) },
        h('bdi', null, short(id)));
export const roundLink = (round) =>
  round == null ? UNKNOWN : h('a', { href: steer.address('rounds', { number: round }) }, count(round));

export const card = (label, value, ...more) =>
  h('section', { class: 'card' }, h('h2', { class: 'label' }, label), h('p', { class: 'value' }, value),
    more.filter(Boolean).map((one) => h('p', { class: 'more' }, one)));
export const cards = (...all) => h('div', { class: all.length % 3 ? 'cards' : 'cards thirds' }, all);
export const charts = (...all) => h('div', { class: 'charts' }, all);
export const box = (title, ...inside) => h('section', { class: 'card' }, title && h('h2', null, title), inside);
export const facts = (pairs) =>
  h('dl', { class: 'facts' }, pairs.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
export const muted = (...text) => h('p', { class: 'muted' }, text);

/** A word with a mark of its own shape: never colour alone. */
export function badge(level, words) {
  const mark = { ok: '✓', bad: '✕', warn: '!', none: '–' }[level];
  return h('span', { class: `badge ${level}` }, h('span', { class: 'mark', 'aria-hidden': 'true' }, mark), words);
}

export function certificate(told) {
  const [level, words] =
    told.holds === true ? ['ok', 'Promise kept'] : told.holds === false
        ? ['bad', 'PROMISE BROKEN']
        : ['none', 'No promise'];
  return h('section', { class: `card promise ${level}` }, h('h2', { class: 'label' }, 'Certificate'),
    h('p', { class: 'value' }, badge(level, words)), h('p', { class: 'more' }, told.words));
}

export const flags = (names) =>
  names.map((name) => [h('span', { class: 'flag', title: FLAGS[name] ?? name }, name), ' ']);
export const flagLegend = (rows) => {
  const seen = Object.keys(FLAGS).filter((name) => rows.some((row) => row.flags.includes(name)));
  return (
    seen.length > 0 &&
    h('dl', { class: 'legend' },
      seen.map((name) => h('div', null, h('dt', null, h('span', { class: 'flag' }, name)), h('dd', null, FLAGS[name]))))
  );
};

export const empty = (title, ...what) => h('div', { class: 'card empty' }, h('h2', null, title), h('p', null, what));
export const noRounds = (reading) =>
  reading
    ? empty('The record is still being read.', 'This page fills by itself as soon as the first round has been read.')
    : empty('No round is recorded yet.', 'This page fills by itself as soon as one is.');
const skeleton = () =>
  h('div', { class: 'skeletons', role: 'status', 'aria-label': 'Loading' },
    ['', '', ''].map(() => h('div', { class: 'skeleton' })));
const trouble = (slot) =>
  h('div', { class: 'box bad', role: 'alert' }, badge('bad', 'No answer'), h('p', null, slot.error),
    h('button', { type: 'button', onclick: () => steer.again(slot) }, 'Try again'));

/** What `draw` makes of an answer; before it a skeleton, after a failure the server's words and what was there. */
export function answer(slot, draw) {
  const failed = slot?.error && trouble(slot);
  if (!slot?.data) return failed || skeleton();
  return [
    failed,
    h('div', { class: slot.old ? 'answer old' : 'answer', 'aria-busy': slot.old ? 'true' : null }, tried(slot, draw)),
  ];
}

/** One part that cannot be drawn must not take the rest of the page with it. */
function tried(slot, draw) {
  try {
    return draw(slot.data);
  } catch (error) {
    console.error(error);
    return trouble({ ...slot, error: `This part of the page cannot be drawn: ${error.message}.` });
  }
}

/**
 * A table in its own scrolling box. A column is {label, cell, key?, text?, title?}: with a `key` it can be sorted by,
 * `text` is for words (numbers stand right). `sorted` is {sort, order, by(changes)}.
 */
export function table({ caption, columns, rows, sorted, current, none = 'There is nothing to list.' }) {
  const head = columns.map(({ key, label, text, title }) => {
    const on = sorted && key && sorted.sort === key;
    const next = (on ? sorted.order === 'desc' : text) ? 'asc' : 'desc';
    const arrow = !on ? '↕' : sorted.order === 'desc' ? '↓' : '↑';
    const sort = () => sorted.by({ sort: key, order: next, page: null });
    const inside = !sorted || !key ? label
      : h('button', { type: 'button', class: 'sort', onclick: sort }, label,
        h('span', { 'aria-hidden': 'true' }, `\u00a0${arrow}`));
    const order = on ? `${sorted.order}ending` : null;
    return h('th', { scope: 'col', class: text && 'text', title, 'aria-sort': order }, inside);
  });
  const body = rows.map((row) =>
    h('tr', { 'aria-current': current?.(row) ? 'true' : null },
      columns.map(({ cell, text }, place) =>
        h(place ? 'td' : 'th', { class: text && 'text', scope: place ? null : 'row' }, cell(row)))));
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    h('table', null, h('caption', null, caption), h('thead', null, h('tr', null, head)),
      h('tbody', null, body.length ? body : h('tr', null, h('td', { class: 'text', colspan: columns.length }, none)))));
}

/** Steps through the pages of a list that the server cuts. */
export function pager({ page, pages, total }, things, by = steer.go, name = 'page') {
  const to = (wanted) => by({ [name]: Math.min(Math.max(1, wanted || 1), pages) });
  const step = (label, wanted, off) => h('button', { type: 'button', disabled: off, onclick: () => to(wanted) }, label);
  if (pages <= 1) return muted(`${count(total)} ${things}`);
  return h(
    'div', { class: 'pager', role: 'group', 'aria-label': `Pages of ${things}` }, step('Previous', page - 1, page <= 1),
    step('Next', page + 1, page >= pages),
    pages > 2 &&
      h('label', null, 'Page ',
        h('input', {
          type: 'number', min: 1, max: pages, value: page, onchange: (event) => to(Number(event.target.value)),
        })),
    h('span', { class: 'muted' },
      `${pages > 2 ? '' : `page ${count(page)} `}of ${count(Math.max(1, pages))}, ${count(total)} ${things}`));
}

/** A row of choices of which one is taken. */
export const choice = (label, options, chosen, take) =>
  h('div', { class: 'choice', role: 'group', 'aria-label': label }, h('span', { class: 'muted' }, label),
    options.map(([value, words]) =>
      h('button', { type: 'button', 'aria-pressed': String(value === chosen), onclick: () => take(value) }, words)));

/** Calls `act` with the last value, once nothing more was typed for a quarter of a second. */
let typing;
export const afterTyping = (act) => (event) => {
  clearTimeout(typing);
  typing = setTimeout(act, 250, event.target.value);
};

export const orders = [['owed', 'most owed'], ['turns', 'turns taken'], ['id', 'order of joining']];
