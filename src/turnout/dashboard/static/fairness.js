// Fairness: what each client was promised, what it got, and how evenly turns are spread.
import { bars, chart, line, roundAxis, rule } from './charts.js';
import { clientsTable, clientsWanted } from './clients.js';
import { answer, box, card, cards, certificate, charts, table, steer } from './parts.js';
import { count, index, number, plain, share, turns } from './words.js';

const most = (values) => values.reduce((a, b) => Math.max(a, b ?? 0), 0);

/** Taken against promised; where all are promised the same, from the fewest turns to the most instead. */
function against(told) {
  const { ids, turns: taken, promised, owed, of } = told.against;
  const low = promised.reduce((a, b) => Math.min(a, b), Infinity);
  const high = most(promised);
  const same = high - low < 1e-6 * Math.max(1, high);
  const order = ids.map((_, place) => place);
  if (same) order.sort((a, b) => taken[a] - taken[b]);
  const x = order.map((place, rank) => (same ? rank + 1 : promised[place]));
  const sample = of > ids.length ? ` These are a sample: ${count(ids.length)} of ${count(of)} clients.` : '';
  const dots = (c, behind) => {
    const mine = order
      .map((place, rank) => [place, rank])
      .filter(([place]) => taken[place] < promised[place] === behind);
    return {
      type: 'scatter', mode: 'markers', name: behind ? 'fewer than promised' : 'promised turns or more',
      x: mine.map(([, rank]) => x[rank]), y: mine.map(([place]) => taken[place]),
      customdata: mine.map(([place]) => ids[place]),
      text: mine.map(([place]) =>
          `${plain(ids[place])}: ${count(taken[place])} of ${number(promised[place])} turns, owed ` +
            `${number(owed[place])}`),
      hovertemplate: '%{text}<extra></extra>',
      marker: {
        color: behind ? c.warn : c.accent, symbol: behind ? 'diamond' : 'circle', size: ids.length > 300 ? 4 : 7,
        opacity: ids.length > 300 ? 0.6 : 0.85,
      },
    };
  };
  return chart({
    id: 'against', from: told, title: 'Who has had less than was promised?', click: (id) => steer.to('client', { id }),
    read: `Each point is a client${same ? ', fewest turns first, all promised the same' : ''}. On the line it has ` +
      `had exactly what it was promised. Those below it are still owed turns.${sample}`,
    traces: (c) => [
      ...(same
        ? []
        : [
            line([low, high], [low, high], 'as promised', c.muted, {
              mode: 'lines', line: { dash: 'dash', width: 1.5 }, hoverinfo: 'skip',
            }),
          ]),
      dots(c, false), dots(c, true),
    ],
    layout: (c) => ({
      xaxis: same ? { title: 'clients, fewest turns first', range: [0, ids.length + 1] } : { title: 'turns promised' },
      yaxis: { title: 'turns taken', rangemode: 'tozero' },
      ...(same ? rule(c, 'y', high, 'promised', { color: c.muted, right: true }) : {}),
    }),
  });
}

function view(told) {
  const { promise } = told.about;
  const { lorenz, worst_over_time: worst } = told;
  const promised = worst.promised ?? promise?.least;
  return [
    cards(certificate(told.certificate),
      card('Least share of the rounds', share(told.least_share),
        promised == null ? 'No share is promised.' : `Promised: ${share(promised)}`),
      card('Jain’s index', index(told.jain),
        '1 where all have had the same number of turns, 1/n where one has had them all.'),
      card('Gini coefficient', index(told.gini), '0 where all have had the same number of turns.')),
    charts(told.against && against(told),
      chart({
        id: 'shares', from: told, title: 'How are the turns spread over clients?',
        read: 'Clients by the share of the rounds they took part in. Bars left of the line have had less than ' +
          'the promised share.',
        traces: (c) => [bars(told.shares, 'clients', c.accent, share)],
        layout: (c) => ({
          xaxis: { title: 'share of the rounds', tickformat: '.3~p' }, yaxis: { title: 'clients', rangemode: 'tozero' },
          showlegend: false,
          ...(promised == null ? {} : rule(c, 'x', promised, 'promised')),
        }),
      }),
      chart({
        id: 'lorenz', from: told, title: 'How much do those with the fewest turns get?',
        read: 'The share of all turns that went to the given part of the clients, fewest turns first. The ' +
          'diagonal is perfect evenness; the deeper the curve hangs below it, the less even.',
        traces: (c) => [
          line([0, 1], [0, 1], 'even', c.muted, {
            mode: 'lines', line: { dash: 'dash', width: 1.5 }, hoverinfo: 'skip',
          }),
          line(lorenz.x, lorenz.y, 'turns', c.accent, {
            mode: 'lines', hovertemplate: '%{x:.0%} of the clients have %{y:.1%} of the turns<extra></extra>',
          }),
        ],
        layout: () => ({
          xaxis: { title: 'part of the clients', tickformat: '.0%', range: [0, 1.01] },
          yaxis: { title: 'part of the turns', tickformat: '.0%', range: [0, 1.02] }, showlegend: false,
        }),
      }),
      chart({
        id: 'worst', from: told, title: 'Does the worst-off client catch up?',
        read: 'The least share of the rounds that any client has had up to then. With the promise kept it climbs ' +
          'to the line, from below.',
        traces: (c) => [
          line(worst.x, worst.least_share, 'least share', c.accent, {
            hovertemplate: 'round %{x:,d}: %{y:.1%}<extra></extra>',
          }),
        ],
        layout: (c) => ({
          xaxis: roundAxis, yaxis: { title: 'least share', tickformat: '.3~p', rangemode: 'tozero' }, showlegend: false,
          ...(promised == null ? {} : rule(c, 'y', promised, 'promised')),
        }),
      })),
    told.groups.length > 0 &&
      box('Groups',
        table({
          caption: 'What each group was promised and has had', rows: told.groups,
          columns: [
            { label: 'group', text: true, cell: (row) => row.name },
            { label: 'clients', cell: (row) => count(row.clients) },
            { label: 'turns', cell: (row) => count(row.turns) },
            { label: 'share of the rounds', cell: (row) => share(row.share) },
            { label: 'promised (turns)', cell: (row) => number(row.promised) },
            { label: 'owed (turns)', cell: (row) => number(row.owed) },
          ],
        })),
  ];
}

export default {
  name: 'fairness', label: 'Fairness', asks: (settings) => ({ fairness: {}, clients: clientsWanted(settings) }),
  view: (slots, settings) => [
    answer(slots.fairness, view),
    box('All clients', answer(slots.clients, (told) => clientsTable(told, settings.search))),
  ],
};
