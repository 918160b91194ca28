// Turns: the rounds in which each client was available and chosen.
import { chart, clientAxis, mapHeight, roundAxis } from './charts.js';
import { h } from './dom.js';
import { ORDERS, choice, empty, navigation, pager, renderSlot } from './parts.js';
import { count, plain, span, turns, words } from './format.js';

const STATES = [
  ['unavailable', 'not available'], ['resting', 'backed off after missed turns'],
  ['available', 'available, not chosen'], ['chosen', 'chosen'],
];
const STRONGER = 'a stronger colour means more turns';
const steps = (colours) =>
  colours.flatMap((colour, index) => [[index / colours.length, colour], [(index + 1) / colours.length, colour]]);

/** The index of a state; available also means not chosen if availability is not recorded. */
const stateOf = (turns, availability, resting) =>
  turns > 0 ? 3 : availability > 0 ? 2 : resting > 0 ? 1 : availability == null ? 2 : 0;

const describeRound = (turns, availability, resting) =>
  availability == null && !turns && !resting ? 'not chosen' : STATES[stateOf(turns, availability, resting)][1];
const shareOf = (part) => `${Math.round(part * 100)} % of the ${words.rounds}`;
const describeBin = (total, availability, resting) =>
  turns(total) + (availability == null ? '' : `, available in ${shareOf(availability)}`) +
  (resting ? `, backed off in ${shareOf(resting)}` : '');

const largestOf = (counts) => counts.reduce((most, row) => row.reduce((a, b) => Math.max(a, b), most), 1);

function legend({ available, resting, width, counts }) {
  const states = (available ? STATES : [['available', 'not chosen (availability is not recorded)'], STATES[3]])
    .filter(([name]) => resting || name !== 'resting');
  return h('ul', { class: 'swatches', 'aria-label': 'Legend' },
    states.map(([name, text]) =>
      h('li', null, h('span', { class: `swatch ${name}`, 'aria-hidden': 'true' }),
        name === 'chosen' && width > 1
          ? `chosen in ${count(largestOf(counts))} of ${count(width)} ${words.rounds}` : text)));
}

function map(data) {
  const { ids, x, counts, available, resting, width: bin } = data;
  const z = counts.map((row, client) =>
    row.map((turns, index) => stateOf(turns, available?.[client][index], resting?.[client][index])));
  const text = counts.map((row, client) =>
    row.map((turns, index) => {
      const known = [turns, available?.[client][index], resting?.[client][index]];
      const when = span(x[index], bin);
      const what = bin === 1 ? describeRound(...known) : describeBin(...known);
      return `${plain(ids[client])}, ${when}: ${what}`;
    }));
  const y = ids.map((_, index) => index);
  const shared = {
    type: 'heatmap', x, y, text, hovertemplate: '%{text}<extra></extra>', showscale: false,
    customdata: ids.map((id) => x.map(() => id)), xgap: x.length < 120 ? 1 : 0, ygap: 1,
  };
  const traces = (c) => {
    const colorscale = steps([c.unavailable, c.resting, c.available, c.chosen]);
    const states = { ...shared, z, zmin: 0, zmax: 3, colorscale };
    if (bin === 1) return [states];
    return [
      { ...states, z: z.map((row) => row.map((state) => Math.min(2, state))) },
      {
        ...shared,
        z: counts.map((row) => row.map((turns) => turns || null)), zmin: 0, zmax: largestOf(counts),
        colorscale: [[0, c.available], [1, c.chosen]], hoverongaps: false,
      },
    ];
  };
  return chart({
    id: 'turns', from: data, wide: true, height: mapHeight(ids), title: 'When is each client chosen?', traces,
    above: legend(data),
    caption:
      `One row per client, one column per ${bin === 1 ? words.round : `${count(bin)} ${words.rounds}; ${STRONGER}`}. ` +
      'A guarantee ' +
      'limits how long an available client waits for its next turn. Click a row to open the client.',
    layout: (c, width) => ({ xaxis: { ...roundAxis, isRounds: false, showgrid: false }, yaxis: clientAxis(ids, width) }),
    click: (id) => navigation.open('client', { id }),
  });
}

function view(data) {
  if (!data.ids.length)
    return empty('No turns are recorded yet.', 'This page updates itself when the first client joins.');
  return [
    choice('Order', ORDERS.filter(([name]) => name !== 'owed' || data.about.has_queue), data.order, (order) => navigation.update({ order, page: null })), map(data),
    pager(data, 'clients'),
  ];
}

export default {
  name: 'turns', label: 'Turns', requests: ({ order = 'behind', page = 1 }) => ({ turns: { order, page } }),
  view: (slots) => renderSlot(slots.turns, view),
};
