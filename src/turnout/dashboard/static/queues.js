// Queues: the turns owed to clients by round, and the distribution of debts.
import { bars, chart, line, roundAxis, rule } from './charts.js';
import { h } from './dom.js';
import { charts, empty, muted, navigation, renderSlot } from './parts.js';
import { turns, words } from './format.js';

function view(data) {
  if (data.empty_reason) return empty('There is no queue', data.empty_reason);
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
    muted('The list of clients has what each is owed: ',
      h('a', { href: navigation.link('fairness', { sort: 'owed' }) }, 'sorted by owed turns'), '.'),
  ];
}

export default {
  name: 'queues', label: 'Queues', isByRound: () => true, requests: () => ({ queues: {} }),
  view: (slots) => renderSlot(slots.queues, view),
};
