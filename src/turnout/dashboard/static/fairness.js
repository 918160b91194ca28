// Fairness: promised and taken turns of each client, and the distribution of turns.
import { bars, chart, line, roundAxis, rule } from './charts.js';
import { clientsRequest, clientsTable } from './clients.js';
import {
  STATUSES, box, card, cards, certificate, charts, clientLink, muted, navigation, renderSlot, sinceOf,
} from './parts.js';
import { count, number, plain, ratio, share, turns, words } from './format.js';

const largest = (values) => values.reduce((a, b) => Math.max(a, b ?? 0), 0);

const sampleOf = (ids, of) =>
  of > ids.length ? ` The chart shows a sample of ${count(ids.length)} of ${count(of)} clients.` : '';
const MARKERS = { kept: ['ok', 'circle'], behind: ['warn', 'diamond'], broken: ['bad', 'x'] };

/** How far each client is behind, those that are furthest behind first, with the tolerance as a line. */
function turnsBehind(data) {
  const { ids, turns: taken, promised, behind, status, tolerance, of } = data.taken_vs_promised;
  const order = ids.map((_, index) => index).sort((a, b) => behind[b] - behind[a]);
  const lowest = -3 * Math.max(tolerance, largest(behind)); // large surpluses would hide who is behind
  const cut = behind.some((value) => value < lowest) ? ` Larger surpluses are drawn at ${number(lowest)} turns.` : '';
  return chart({
    id: 'turns-behind', from: data, wide: true, title: 'How far are clients behind?',
    click: (id) => navigation.open('client', { id }),
    caption:
      'Each point is a client, those that are furthest behind first: promised turns minus turns; below 0 is a ' +
      `surplus. Above the line, the tolerance, the promise is broken.${cut}${sampleOf(ids, of)}`,
    traces: (c) =>
      Object.entries(MARKERS).map(([name, [colour, symbol]]) => {
        const shown = order.map((index, rank) => [index, rank]).filter(([index]) => status[index] === name);
        return {
          type: 'scatter', mode: 'markers', name: STATUSES[name][1], showlegend: shown.length > 0,
          x: shown.map(([, rank]) => rank + 1), y: shown.map(([index]) => Math.max(behind[index], lowest)),
          customdata: shown.map(([index]) => ids[index]),
          text: shown.map(([index]) =>
              `${plain(ids[index])}: ${number(behind[index])} turns behind, ${number(taken[index])} of ` +
                `${number(promised[index])} turns`),
          hovertemplate: '%{text}<extra></extra>', cliponaxis: false,
          marker: { color: c[colour], symbol, size: ids.length > 300 ? 5 : 8 },
        };
      }),
    layout: (c) => ({
      xaxis: { title: 'clients, furthest behind first', range: [0, ids.length + 1] },
      yaxis: { title: 'turns behind', zeroline: true, zerolinecolor: c.muted },
      ...rule(c, 'y', tolerance, `tolerance: ${turns(tolerance)}`, { color: c.bad, right: true }),
    }),
  });
}

/** Taken against promised turns; clients in order of their turns if all are promised the same number. */
function takenVsPromised(data) {
  const { ids, turns: taken, promised, owed, of } = data.taken_vs_promised;
  const low = promised.reduce((a, b) => Math.min(a, b), Infinity);
  const high = largest(promised);
  const same = high - low < 1e-6 * Math.max(1, high);
  const order = ids.map((_, index) => index);
  if (same) order.sort((a, b) => taken[a] - taken[b]);
  const x = order.map((index, rank) => (same ? rank + 1 : promised[index]));
  const points = (c, behind) => {
    const shown = order
      .map((index, rank) => [index, rank])
      .filter(([index]) => taken[index] < promised[index] === behind);
    return {
      type: 'scatter', mode: 'markers', name: behind ? 'fewer than promised' : 'promised turns or more',
      x: shown.map(([, rank]) => x[rank]), y: shown.map(([index]) => taken[index]),
      customdata: shown.map(([index]) => ids[index]),
      text: shown.map(([index]) =>
          `${plain(ids[index])}: ${count(taken[index])} of ${number(promised[index])} turns` +
            (owed[index] == null ? '' : `, queue of owed turns ${number(owed[index])}`)),
      hovertemplate: '%{text}<extra></extra>',
      marker: {
        color: behind ? c.warn : c.accent, symbol: behind ? 'diamond' : 'circle', size: ids.length > 300 ? 4 : 7,
        opacity: ids.length > 300 ? 0.6 : 0.85,
      },
    };
  };
  return chart({
    id: 'taken-vs-promised', from: data, title: 'Which clients got fewer turns than promised?',
    click: (id) => navigation.open('client', { id }),
    caption:
      `Each point is a client${same ? '; clients are ordered by turns' : ''}. The line marks the promised turns: ` +
      `clients below it are behind.${sampleOf(ids, of)}`,
    traces: (c) => [
      ...(same
        ? []
        : [
            line([low, high], [low, high], 'promised', c.muted, {
              mode: 'lines', line: { dash: 'dash', width: 1.5 }, hoverinfo: 'skip',
            }),
          ]),
      points(c, false), points(c, true),
    ],
    layout: (c) => ({
      xaxis: same ? { title: 'clients, ordered by turns', range: [0, ids.length + 1] } : { title: 'turns promised' },
      yaxis: { title: 'turns taken', rangemode: 'tozero' },
      ...(same ? rule(c, 'y', high, 'promised', { color: c.muted, right: true }) : {}),
    }),
  });
}

/** Names the clients that were there for too few rounds to be served. */
function unserved({ unserved: { total, ids } }) {
  if (!total) return null;
  const more = total > ids.length ? ` and ${count(total - ids.length)} more` : '';
  const were = total === 1 ? 'client was' : 'clients were';
  return muted(`${count(total)} ${were} there for too few ${words.rounds} to be served: `,
    ids.map((id, index) => [index > 0 && ', ', clientLink(id)]), `${more}.`);
}

function view(data) {
  const { promise } = data.about;
  const { lorenz, worst_over_time: worst } = data;
  const promised = worst.promised ?? promise?.least;
  const shareOf = data.about.share_of;
  return [
    cards(certificate(data.about.certificate),
      card(`Smallest share of ${shareOf}`, share(data.least_share),
        promised == null ? 'No share is promised.' : `Promised: ${share(promised)}`),
      card('Jain’s index', ratio(data.jain),
        '1 if all n clients have had the same number of turns, 1/n if one client has had all turns.'),
      card('Gini coefficient', ratio(data.gini), '0 if all clients have had the same number of turns.')),
    unserved(data), data.owed_note && muted(data.owed_note),
    charts(data.taken_vs_promised && turnsBehind(data), data.taken_vs_promised && takenVsPromised(data),
      chart({
        id: 'shares', from: data, title: 'How are turns distributed over clients?',
        caption:
          `Number of clients by their share of ${shareOf}. Clients left of the line have had less than the promised ` +
          'share.',
        traces: (c) => [bars(data.shares, 'clients', c.accent, share)],
        layout: (c) => ({
          xaxis: { title: `share of ${shareOf}`, tickformat: '.3~p' }, yaxis: { title: 'clients', rangemode: 'tozero' },
          showlegend: false,
          ...(promised == null ? {} : rule(c, 'x', promised, 'promised')),
        }),
      }),
      chart({
        id: 'lorenz', from: data, title: 'How unequal are the turns? (Lorenz curve)',
        caption:
          'Share of all turns taken by a given share of the clients, those with the fewest turns first. The diagonal ' +
          'means equal turns; the further the curve is below it, the less equal they are.',
        traces: (c) => [
          line([0, 1], [0, 1], 'equal', c.muted, {
            mode: 'lines', line: { dash: 'dash', width: 1.5 }, hoverinfo: 'skip',
          }),
          line(lorenz.x, lorenz.y, 'turns', c.accent, {
            mode: 'lines', hovertemplate: '%{x:.0%} of the clients have %{y:.1%} of the turns<extra></extra>',
          }),
        ],
        layout: () => ({
          xaxis: { title: 'share of the clients', tickformat: '.0%', range: [0, 1.01] },
          yaxis: { title: 'share of the turns', tickformat: '.0%', range: [0, 1.02] }, showlegend: false,
        }),
      }),
      chart({
        id: 'worst', from: data, title: 'Does the client with the smallest share catch up?',
        caption:
          `The smallest share of ${shareOf} of any client up to each ${words.round}. If all clients get their turns, ` +
          'it approaches the line from below.',
        traces: (c) => [
          line(worst.x, worst.least_share, 'smallest share', c.accent, {
            hovertemplate: `${words.round} %{x:,d}: %{y:.1%}<extra></extra>`,
          }),
        ],
        layout: (c) => ({
          xaxis: roundAxis, yaxis: { title: 'smallest share', tickformat: '.3~p', rangemode: 'tozero' },
          showlegend: false,
          ...(promised == null ? {} : rule(c, 'y', promised, 'promised')),
        }),
      })),
  ];
}

export default {
  name: 'fairness', label: 'Fairness', isByRound: () => true,
  requests: (settings) => ({ fairness: { since: sinceOf(settings) }, clients: clientsRequest(settings) }),
  view: (slots, settings) => [
    renderSlot(slots.fairness, view),
    box('All clients', renderSlot(slots.clients, (data) => clientsTable(data, settings.search))),
  ],
};
