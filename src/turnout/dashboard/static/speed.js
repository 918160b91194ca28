// Speed model: how well the learned times foretell the real ones, and where they do not.
import { band, bars, chart, line, roundAxis, rule } from './charts.js';
import { answer, box, card, cards, charts, clientLink, empty, flags, muted, steer, table } from './parts.js';
import { FLAGS, count, number, plain, seconds, share } from './words.js';

function view(told) {
  if (told.why_not) return empty('There is no speed model to judge', told.why_not);
  const { points, band: room, error, residuals } = told;
  const ends = [Math.min(...points.predicted), Math.max(...points.predicted)];
  return [
    cards(card('Clients with a time', count(told.known), `of ${count(told.about.clients)}`),
      card('Mean error', seconds(told.mean_abs), 'How far a prediction is from the time that was taken.'),
      card('Bias', seconds(told.bias),
        told.bias == null ? null : told.bias > 0
            ? 'Clients are slower than predicted.'
            : 'Clients are faster than predicted.'),
      told.inside != null &&
        card('Inside the band', share(told.inside),
          'of the newer times; the band holds 90 % of the older ones. Far less: clients are not what they were.'),
      card(
        'Exploration', number(told.exploration), 'How far a little-known client is taken to be faster than predicted.'),
    ),
    points.id.length
      ? charts(
          chart({
            id: 'speed-points', from: told, height: 340, title: 'Do clients take as long as predicted?',
            read: 'Each point is one turn. On the line the prediction was right; above it the client was slower. ' +
              (room ? 'In the band lie 9 in 10 of the older half of these turns.' : ''),
            traces: (c) => [
              ...(room ? band(room.predicted, room.low, room.high, c.band) : []),
              line(ends, ends, 'as predicted', c.muted, {
                mode: 'lines', line: { dash: 'dash', width: 1.5 }, hoverinfo: 'skip',
              }),
              {
                type: 'scatter', mode: 'markers', name: 'turns', x: points.predicted, y: points.actual,
                customdata: points.id.map((id, place) => [id, points.round[place]]),
                text: points.id.map((id, place) => `${plain(id)}, round ${count(points.round[place])}`),
                hovertemplate: '%{text}: predicted %{x:.2f} s, took %{y:.2f} s<extra></extra>',
                marker: { color: c.accent, size: points.id.length > 400 ? 4 : 6, opacity: 0.65 },
              },
            ],
            layout: () => ({
              xaxis: { title: 'predicted (seconds)' }, yaxis: { title: 'taken (seconds)', rangemode: 'tozero' },
              showlegend: false,
            }),
            click: ([id, round]) => steer.to('client', { id, round }),
          }),
          chart({
            id: 'speed-error', from: told, height: 340, title: 'Does the model learn?',
            read: 'Mean distance between prediction and time, over the rounds. It falls while clients become ' +
              'known, then stays at what cannot be foretold.',
            traces: (c) => [
              line(error.x, error.mean_abs, 'mean error', c.accent, {
                hovertemplate: 'round %{x:,d}: %{y:.2f} s<extra></extra>',
              }),
            ],
            layout: () => ({
              xaxis: roundAxis, yaxis: { title: 'mean error (seconds)', rangemode: 'tozero' }, showlegend: false,
            }),
          }),
          chart({
            id: 'speed-residuals', from: told, title: 'Is it too hopeful or too careful?',
            read: 'Turns by the time taken less the time predicted. More weight right of zero: clients are ' +
              'slower than predicted.',
            traces: (c) => [bars(residuals, 'turns', c.accent, seconds)],
            layout: (c) => ({
              xaxis: { title: 'taken − predicted (seconds)' }, yaxis: { title: 'turns', rangemode: 'tozero' },
              showlegend: false,
              ...rule(c, 'x', 0, 'as predicted', { color: c.ink }),
            }),
          }),
          box('Clients to look at',
            told.flags.length
              ? table({
                  caption: 'Clients whose times the model gets wrong', rows: told.flags,
                  columns: [
                    { label: 'client', text: true, cell: (row) => clientLink(row.id) },
                    { label: 'flag', text: true, cell: (row) => flags([row.kind]) },
                    { label: 'what was seen', text: true, cell: (row) => row.text || FLAGS[row.kind] },
                  ],
                })
              : muted('No client is flagged.')))
      : empty('No time is recorded yet.', 'This page fills by itself as soon as the first client is back.'),
  ];
}

export default {
  name: 'speed', label: 'Speed model', asks: () => ({ speed: {} }), view: (slots) => answer(slots.speed, view),
};
