// Training: metrics of the model by round and by time, compared with other policies.
import { LEGEND_LIMIT, band, chart, line, roundAxis, timeUnit } from './charts.js';
import { charts, choice, empty, navigation, renderSlot } from './parts.js';
import { plain, words } from './format.js';

const DASHES = ['dash', 'dot', 'dashdot', 'solid'];

/** `#rrggbb` as a transparent rgba() colour, which all versions of Plotly accept. */
const transparent = (colour) => {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, 0.15)`;
};

function curves(data, field, by) {
  return (c) =>
    data.groups.flatMap((group, index) => {
      const isCrowded = data.groups.length > LEGEND_LIMIT;
      const colour = group.is_current ? c.accent : isCrowded ? c.muted : c.series[index % c.series.length];
      const x = group[field].map((value) => value / by);
      const interval = group.half_width && (group.is_current || !isCrowded)
        ? band(x, group.mean.map((mean, at) => mean - (group.half_width[at] ?? 0)),
            group.mean.map((mean, at) => mean + (group.half_width[at] ?? 0)), transparent(colour))
        : [];
      const name = `${group.is_current ? 'this run: ' : ''}${group.name}`;
      return [
        ...interval,
        line(x, group.mean, name, colour, {
          mode: 'lines', text: x.map(() => plain(name, 40)),
          hovertemplate: '%{text}: %{y:.4~g} at %{x:.4~g}<extra></extra>',
          line: {
            width: group.is_current ? 3.5 : isCrowded ? 1 : 1.5,
            dash: group.is_current || isCrowded ? 'solid' : DASHES[index % 4],
          },
          opacity: isCrowded && !group.is_current ? 0.55 : 1,
        }),
      ];
    });
}

const losses = (data) => chart({
    id: 'train-losses', from: data, title: 'Do the losses of clients fall?',
    caption: `Mean of the training losses that clients reported in each ${words.round}.`,
    traces: (c) => [line(data.losses.x, data.losses.mean, 'reported loss', c.accent)],
    layout: () => ({ xaxis: roundAxis, yaxis: { title: 'mean reported loss' }, showlegend: false }),
  });

function view(data) {
  if (!data.groups.length && data.losses) return charts(losses(data));
  if (!data.groups.length)
    return empty('No metrics are recorded.', data.about.run == null
        ? 'This page shows the metrics of a Flower server as it trains, and losses that clients report.'
        : 'This run simulated selections and times without training a model. Metrics of runs that train a model are ' +
          'shown here.');
  const [by, unit] = timeUnit(Math.max(...data.groups.map((group) => group.seconds.at(-1) ?? 0)));
  const isCrowded = data.groups.length > LEGEND_LIMIT;
  const isTimed = data.about.slots != null;
  const after = isTimed ? (data.about.run == null ? 'decisions' : 'turns that have ended') : 'rounds';
  const others = isCrowded ? ' Thin lines are other policies; hover over a line to see its name.' : '';
  const title = { title: plain(data.metric) };
  const runs = Math.max(...data.groups.map((group) => group.runs ?? 1));
  const bands = data.groups.some((group) => group.half_width)
    ? ` Bands are 95 % confidence intervals over ${runs} runs with different seeds.`
    : '';
  return [
    data.metrics.length > 1 &&
      choice('Metric', data.metrics.map((name) => [name, name]), data.metric,
        (metric) => navigation.update({ metric })),
    charts(
      chart({
        id: `train-rounds-${data.metric}`, from: data, height: 380,
        title: `How does ${data.metric} change with each ${isTimed ? 'turn' : 'round'}?`,
        caption:
          (data.groups.length > 1 ? 'The thick line is the policy of this run.' : `Values measured after ${after}.`) +
          `${others}${bands}`,
        traces: curves(data, 'rounds', 1),
        layout: () => ({
          xaxis: isTimed ? { ...roundAxis, title: after } : roundAxis, yaxis: title, showlegend: !isCrowded,
        }),
      }),
      chart({
        id: `train-seconds-${data.metric}`, from: data, height: 380,
        title: `How does ${data.metric} change over time?`,
        caption: `The same values over ${isTimed ? 'time' : 'the cumulative duration of the rounds'}.${bands}`,
        traces: curves(data, 'seconds', by),
        layout: () => ({ xaxis: { title: unit }, yaxis: title, showlegend: !isCrowded }),
      }),
      data.losses && losses(data)),
  ];
}

export default {
  name: 'training', label: 'Training', requests: ({ metric }) => ({ training: { metric } }),
  view: (slots) => renderSlot(slots.training, view),
};
