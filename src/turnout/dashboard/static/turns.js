// Turns: the record of who was chosen when, and who was there to be chosen.
import { chart, clientAxis, mapHeight, roundAxis } from './charts.js';
import { h } from './dom.js';
import { answer, choice, empty, orders, pager, steer } from './parts.js';
import { count, plain } from './words.js';

const STATES = [['away', 'away'], ['there', 'there, not chosen'], ['chosen', 'chosen']];
const STRONGER = 'the stronger the colour, the more of them were its turns';
const steps = (colours) =>
  colours.flatMap((colour, place) => [[place / colours.length, colour], [(place + 1) / colours.length, colour]]);

/** 0 away, 1 there, 2 chosen; without a record of who was there, 1 is everyone who was not chosen. */
const stateOf = (turns, there) => (turns > 0 ? 2 : there == null || there > 0 ? 1 : 0);

const mostOf = (counts) => counts.reduce((most, row) => row.reduce((a, b) => Math.max(a, b), most), 1);

function legend({ available, width, counts }) {
  const states = available ? STATES : [['there', 'not chosen (who was away is not recorded)'], STATES[2]];
  return h('ul', { class: 'swatches', 'aria-label': 'What the colours mean' },
    states.map(([name, words]) =>
      h('li', null, h('span', { class: `swatch ${name}`, 'aria-hidden': 'true' }),
        name === 'chosen' && width > 1 ? `chosen in ${count(mostOf(counts))} of ${count(width)} rounds` : words)));
}

function map(told) {
  const { ids, x, counts, available, width: bin } = told;
  const z = counts.map((row, client) => row.map((turns, place) => stateOf(turns, available?.[client][place])));
  const text = counts.map((row, client) =>
    row.map((turns, place) => {
      const there = available?.[client][place];
      const when = bin === 1 ? `round ${count(x[place])}` : `rounds ${count(x[place])} to ${count(x[place] + bin - 1)}`;
      const what =
        bin === 1
          ? turns ? 'chosen' : there == null ? 'not chosen' : there ? 'there, not chosen' : 'away'
          : `${count(turns)} turns${there == null ? '' : `, there in ${Math.round(there * 100)} % of them`}`;
      return `${plain(ids[client])}, ${when}: ${what}`;
    }));
  const y = ids.map((_, place) => place);
  const shared = {
    type: 'heatmap', x, y, text, hovertemplate: '%{text}<extra></extra>', showscale: false,
    customdata: ids.map((id) => x.map(() => id)), xgap: x.length < 120 ? 1 : 0, ygap: 1,
  };
  const traces = (c) => {
    const states = { ...shared, z, zmin: 0, zmax: 2, colorscale: steps([c.away, c.there, c.chosen]) };
    if (bin === 1) return [states];
    return [
      { ...states, z: z.map((row) => row.map((state) => Math.min(1, state))) },
      {
        ...shared,
        z: counts.map((row) => row.map((turns) => turns || null)), zmin: 0, zmax: mostOf(counts),
        colorscale: [[0, c.there], [1, c.chosen]], hoverongaps: false,
      },
    ];
  };
  return chart({
    id: 'turns', from: told, wide: true, height: mapHeight(ids), title: 'Who is chosen when?', traces,
    above: legend(told),
    read: `One row a client, one column ${bin === 1 ? 'a round' : `for every ${count(bin)} rounds: ${STRONGER}`}. ` +
      'Long stretches without a turn of a client that is there are what the promise limits. Click a row to open its client.',
    layout: (c, width) => ({ xaxis: { ...roundAxis, showgrid: false }, yaxis: clientAxis(ids, width) }),
    click: (id) => steer.to('client', { id }),
  });
}

function view(told) {
  if (!told.ids.length) return empty('No turn is recorded yet.', 'This page fills by itself as soon as one is.');
  return [
    choice('Order', orders, told.order, (order) => steer.go({ order, page: null })), map(told), pager(told, 'clients'),
  ];
}

export default {
  name: 'turns', label: 'Turns', asks: ({ order = 'owed', page = 1 }) => ({ turns: { order, page } }),
  view: (slots) => answer(slots.turns, view),
};
