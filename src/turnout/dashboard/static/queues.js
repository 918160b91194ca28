// Queues: the turns owed to each client by round, and the distribution of debts.
import { bars, chart, clientAxis, line, mapHeight, roundAxis, rule } from './charts.js';
import { ORDERS, charts, choice, empty, muted, navigation, pager, renderSlot } from './parts.js';
import { plain, turns, words } from './format.js';

function map(data) {
  const { ids, x, owed } = data;
  return chart({
    id: 'queues', from: data, wide: true, height: mapHeight(ids), title: 'Which debts grow, and which are paid?',
    caption:
      `One row per client, one column per ${words.round} or group of ${words.rounds}. A stronger colour means more ` +
      'turns owed; a row that fades was paid. Click a row to open the client.',
    traces: (c) => [
      {
        type: 'heatmap', x, y: ids.map((_, index) => index), z: owed, colorscale: c.scale, zmin: 0,
        colorbar: { title: { text: 'turns', side: 'top' }, thickness: 10, outlinewidth: 0, len: 1 },
        customdata: ids.map((id) => x.map(() => id)), text: ids.map((id) => x.map(() => plain(id))),
        hovertemplate: `%{text}, ${words.round} %{x:,d}: %{z:.2f} turns owed<extra></extra>`, hoverongaps: false,
      },
    ],
    layout: (c, width) => ({ xaxis: { ...roundAxis, isRounds: false, showgrid: false }, yaxis: clientAxis(ids, width) }),
    click: (id) => navigation.open('client', { id }),
  });
}

function view(data) {
  const { curve, now, cap } = data;
  return [
    data.owed_note && muted(data.owed_note),
    charts(curve &&
        chart({
          id: 'queue-curve', from: data, title: 'Do debts stay bounded?',
          caption:
            'Largest debt, 95th percentile and mean of all clients, in turns. Steadily rising curves mean that more ' +
            'is promised than given; the page Fairness judges the promise by the turns behind.',
          traces: (c) => [
            line(curve.x, curve.worst, 'largest', c.bad),
            line(curve.x, curve.p95, '95th percentile', c.warn, { line: { dash: 'dash' } }),
            line(curve.x, curve.mean, 'mean', c.accent, { line: { dash: 'dot' } }),
          ],
          layout: () => ({ xaxis: roundAxis, yaxis: { title: 'turns owed', rangemode: 'tozero' } }),
        }),
      now &&
        chart({
          id: 'queue-now', from: data, title: 'How are the current debts distributed?',
          caption: `Number of clients by turns owed after the last ${words.round}. ` +
            (cap == null ? 'Debts have no cap.' : `Debts are capped at ${turns(cap)}; further turns are forfeited.`),
          traces: (c) => [bars(now, 'clients', c.accent, turns)],
          layout: (c) => ({
            xaxis: { title: 'turns owed', rangemode: 'tozero' }, yaxis: { title: 'clients', rangemode: 'tozero' },
            showlegend: false,
            ...(cap != null && cap <= now.edges.at(-1) * 2 ? rule(c, 'x', cap, 'cap') : {}),
          }),
        })),
    data.owed && data.ids.length
      ? [
          choice('Order', ORDERS, data.order, (order) => navigation.update({ order, page: null })), map(data),
          pager(data, 'clients'),
        ]
      : empty('Debts by client are not available', data.empty_reason ?? 'No client has joined yet.'),
  ];
}

export default {
  name: 'queues', label: 'Queues', isByRound: () => true, requests: ({ order = 'owed', page = 1 }) => ({ queues: { order, page } }),
  view: (slots) => renderSlot(slots.queues, view),
};
