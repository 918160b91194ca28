// Queues: what every client is owed, round by round, and whether debts stay below their cap.
import { bars, chart, clientAxis, line, mapHeight, roundAxis, rule } from './charts.js';
import { answer, charts, choice, empty, orders, pager, steer } from './parts.js';
import { plain, turns } from './words.js';

function map(told) {
  const { ids, x, owed } = told;
  return chart({
    id: 'queues', from: told, wide: true, height: mapHeight(ids), title: 'Whose debt grows, and whose is paid?',
    read: 'One row a client, one column a round (or the rounds that share a column). The stronger the colour, ' +
      'the more turns it was owed then. A row that fades was paid. Click a row to open its client.',
    traces: (c) => [
      {
        type: 'heatmap', x, y: ids.map((_, place) => place), z: owed, colorscale: c.scale, zmin: 0,
        colorbar: { title: { text: 'turns', side: 'top' }, thickness: 10, outlinewidth: 0, len: 1 },
        customdata: ids.map((id) => x.map(() => id)), text: ids.map((id) => x.map(() => plain(id))),
        hovertemplate: '%{text}, round %{x:,d}: %{z:.2f} turns owed<extra></extra>', hoverongaps: false,
      },
    ],
    layout: (c, width) => ({ xaxis: { ...roundAxis, showgrid: false }, yaxis: clientAxis(ids, width) }),
    click: (id) => steer.to('client', { id }),
  });
}

function view(told) {
  const { curve, now, cap } = told;
  return [
    charts(curve &&
        chart({
          id: 'queue-curve', from: told, title: 'Do debts settle?',
          read: 'Turns owed to the client that is owed most, to the one that 95 of 100 are owed less than, and ' +
            'on average. Curves that flatten belong to a promise that is being kept.',
          traces: (c) => [
            line(curve.x, curve.worst, 'most owed', c.bad),
            line(curve.x, curve.p95, '95th percentile', c.warn, { line: { dash: 'dash' } }),
            line(curve.x, curve.mean, 'mean', c.accent, { line: { dash: 'dot' } }),
          ],
          layout: () => ({ xaxis: roundAxis, yaxis: { title: 'turns owed', rangemode: 'tozero' } }),
        }),
      now &&
        chart({
          id: 'queue-now', from: told, title: 'How much is owed now, and to how many?',
          read: 'Clients by the turns they are owed after the newest round. ' + (cap == null ? 'There is no cap.'
            : `Nobody can be owed more than the cap of ${turns(cap)}: what would exceed it is forfeited.`),
          traces: (c) => [bars(now, 'clients', c.accent, turns)],
          layout: (c) => ({
            xaxis: { title: 'turns owed now', rangemode: 'tozero' }, yaxis: { title: 'clients', rangemode: 'tozero' },
            showlegend: false,
            ...(cap != null && cap <= now.edges.at(-1) * 2 ? rule(c, 'x', cap, 'cap') : {}),
          }),
        })),
    told.owed && told.ids.length
      ? [
          choice('Order', orders, told.order, (order) => steer.go({ order, page: null })), map(told),
          pager(told, 'clients'),
        ]
      : empty('No map of debts', told.why_not ?? 'No debts are recorded: this policy promises nothing.'),
  ];
}

export default {
  name: 'queues', label: 'Queues', asks: ({ order = 'owed', page = 1 }) => ({ queues: { order, page } }),
  view: (slots) => answer(slots.queues, view),
};
