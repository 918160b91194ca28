// Turns: the rounds in which each client was available and chosen.
import { chart, clientAxis, mapHeight, roundAxis } from './charts.js';
import { h } from './dom.js';
import { ORDERS, choice, empty, navigation, pager, renderSlot } from './parts.js';
import { count, plain, span, turns, words } from './format.js';

const STATES = [['unavailable', 'not available'], ['available', 'available, not chosen'], ['chosen', 'chosen']];
const STRONGER = 'a stronger colour means more turns';
const steps = (colours) =>
  colours.flatMap((colour, index) => [[index / colours.length, colour], [(index + 1) / colours.length, colour]]);

/** 0 not available, 1 available, 2 chosen; 1 also means not chosen if availability is not recorded. */
const stateOf = (turns, availability) => (turns > 0 ? 2 : availability == null || availability > 0 ? 1 : 0);

const describeRound = (turns, availability) =>
  turns ? 'chosen' : availability == null ? 'not chosen' : availability ? 'available, not chosen' : 'not available';
const describeBin = (total, availability) =>
  turns(total) +
  (availability == null ? '' : `, available in ${Math.round(availability * 100)} % of the ${words.rounds}`);

const largestOf = (counts) => counts.reduce((most, row) => row.reduce((a, b) => Math.max(a, b), most), 1);

function legend({ available, width, counts }) {
  const states = available ? STATES : [['available', 'not chosen (availability is not recorded)'], STATES[2]];
  return h('ul', { class: 'swatches', 'aria-label': 'Legend' },
    states.map(([name, text]) =>
      h('li', null, h('span', { class: `swatch ${name}`, 'aria-hidden': 'true' }),
        name === 'chosen' && width > 1
          ? `chosen in ${count(largestOf(counts))} of ${count(width)} ${words.rounds}` : text)));
}

function map(data) {
  const { ids, x, counts, available, width: bin } = data;
  const z = counts.map((row, client) => row.map((turns, index) => stateOf(turns, available?.[client][index])));
  const text = counts.map((row, client) =>
    row.map((turns, index) => {
      const availability = available?.[client][index];
      const when = span(x[index], bin);
      const what = bin === 1 ? describeRound(turns, availability) : describeBin(turns, availability);
      return `${plain(ids[client])}, ${when}: ${what}`;
    }));
  const y = ids.map((_, index) => index);
  const shared = {
    type: 'heatmap', x, y, text, hovertemplate: '%{text}<extra></extra>', showscale: false,
    customdata: ids.map((id) => x.map(() => id)), xgap: x.length < 120 ? 1 : 0, ygap: 1,
  };
  const traces = (c) => {
    const states = { ...shared, z, zmin: 0, zmax: 2, colorscale: steps([c.unavailable, c.available, c.chosen]) };
    if (bin === 1) return [states];
    return [
      { ...states, z: z.map((row) => row.map((state) => Math.min(1, state))) },
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
    layout: (c, width) => ({ xaxis: { ...roundAxis, showgrid: false }, yaxis: clientAxis(ids, width) }),
    click: (id) => navigation.open('client', { id }),
  });
}

function view(data) {
  if (!data.ids.length)
    return empty('No turns are recorded yet.', 'This page updates itself when the first client joins.');
  return [
    choice('Order', ORDERS, data.order, (order) => navigation.update({ order, page: null })), map(data),
    pager(data, 'clients'),
  ];
}

export default {
  name: 'turns', label: 'Turns', requests: ({ order = 'owed', page = 1 }) => ({ turns: { order, page } }),
  view: (slots) => renderSlot(slots.turns, view),
};
