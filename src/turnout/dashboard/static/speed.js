// Speed model: predicted and actual exchange times, and clients that the model does not explain.
import { SMOOTHED, band, bars, chart, line, roundAxis, rule, withAverage } from './charts.js';
import {
  box, card, cards, charts, clientLink, empty, flags, muted, navigation, renderSlot, sinceOf, table,
} from './parts.js';
import { FLAGS, count, number, plain, seconds, share, words } from './format.js';

function view(data) {
  if (data.empty_reason) return empty('No predictions yet', data.empty_reason);
  const { points, band: interval, error, residuals } = data;
  const ends = [Math.min(...points.predicted), Math.max(...points.predicted)];
  return [
    cards(card('Clients with known times', count(data.known), `of ${count(data.about.clients)}`),
      card('Mean absolute error', seconds(data.mean_abs),
        'Mean absolute difference between predicted and actual time.'),
      card('Bias', seconds(data.bias),
        data.bias == null ? null : data.bias > 0
            ? 'Clients are slower than predicted.'
            : 'Clients are faster than predicted.'),
      data.inside != null &&
        card('Inside the band', share(data.inside),
          'of the newer half of the turns. The band contains 90 % of the older half; a much lower value means that ' +
            'clients have changed.'),
      card(
        'Exploration', number(data.exploration),
        'How much faster than predicted the policy assumes clients with few turns to be.'),
    ),
    points.id.length
      ? charts(
          chart({
            id: 'speed-points', from: data, height: 340, title: 'Do clients take as long as predicted?',
            caption: 'Each point is a turn. On the line the prediction was exact; above it the client was slower. ' +
              (interval ? 'The band contains 90 % of the older half of these turns.' : ''),
            traces: (c) => [
              ...(interval ? band(interval.predicted, interval.low, interval.high, c.band) : []),
              line(ends, ends, 'exact', c.muted, {
                mode: 'lines', line: { dash: 'dash', width: 1.5 }, hoverinfo: 'skip',
              }),
              {
                type: 'scatter', mode: 'markers', name: 'turns', x: points.predicted, y: points.actual,
                customdata: points.id.map((id, index) => [id, points.round[index]]),
                text: points.id.map((id, index) => `${plain(id)}, ${words.round} ${count(points.round[index])}`),
                hovertemplate: '%{text}: predicted %{x:.2f} s, actual %{y:.2f} s<extra></extra>',
                marker: { color: c.accent, size: points.id.length > 400 ? 4 : 6, opacity: 0.65 },
              },
            ],
            layout: () => ({
              xaxis: { title: 'predicted (seconds)' }, yaxis: { title: 'actual (seconds)', rangemode: 'tozero' },
              showlegend: false,
            }),
            click: ([id, round]) => navigation.open('client', { id, round }),
          }),
          chart({
            id: 'speed-error', from: data, height: 340, title: 'Do predictions improve?',
            caption:
              `Mean absolute error by ${words.round}. ` +
              'It falls while the model learns, then stays at the random variation of ' +
              `the times.${SMOOTHED}`,
            traces: (c) => [
              ...withAverage(error.x, error.mean_abs, 'mean absolute error', c.accent, {
                hovertemplate: `${words.round} %{x:,d}: %{y:.2f} s<extra></extra>`,
              }),
            ],
            layout: () => ({
              xaxis: roundAxis, yaxis: { title: 'mean absolute error (seconds)', rangemode: 'tozero' },
              showlegend: false,
            }),
          }),
          chart({
            id: 'speed-residuals', from: data, title: 'Are predictions biased?',
            caption: 'Number of turns by actual minus predicted time. Turns right of zero took longer than predicted.',
            traces: (c) => [bars(residuals, 'turns', c.accent, seconds)],
            layout: (c) => ({
              xaxis: { title: 'actual − predicted (seconds)' }, yaxis: { title: 'turns', rangemode: 'tozero' },
              showlegend: false,
              ...rule(c, 'x', 0, 'exact', { color: c.ink }),
            }),
          }),
          box('Flagged clients',
            data.flags.length
              ? table({
                  caption: 'Clients whose times the model does not explain', rows: data.flags,
                  columns: [
                    { label: 'client', text: true, cell: (row) => clientLink(row.id) },
                    { label: 'flag', text: true, cell: (row) => flags([row.kind]) },
                    { label: 'reason', text: true, cell: (row) => row.text || FLAGS[row.kind] },
                  ],
                })
              : muted('No client is flagged.')))
      : empty('No times are recorded yet.', 'This page updates itself when the first client returns.'),
  ];
}

export default {
  name: 'speed', label: 'Speed model', isByRound: () => true,
  requests: (settings) => ({ speed: { since: sinceOf(settings) } }), view: (slots) => renderSlot(slots.speed, view),
};
