// Training: how good the model is after so many rounds and after so much time, against other policies.
import { MANY, band, chart, line, roundAxis, timeUnit } from './charts.js';
import { answer, charts, choice, empty, steer } from './parts.js';
import { plain } from './words.js';

const DASHES = ['dash', 'dot', 'dashdot', 'solid'];

/** `#rrggbb` made see-through, in words that every Plotly understands. */
const faint = (colour) => {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, 0.15)`;
};

function curves(told, field, by) {
  return (c) =>
    told.groups.flatMap((group, place) => {
      const many = told.groups.length > MANY;
      const colour = group.is_current ? c.accent : many ? c.muted : c.series[place % c.series.length];
      const x = group[field].map((value) => value / by);
      const room = group.half_width && (group.is_current || !many)
        ? band(x, group.mean.map((mean, at) => mean - (group.half_width[at] ?? 0)),
            group.mean.map((mean, at) => mean + (group.half_width[at] ?? 0)), faint(colour))
        : [];
      const name = `${group.is_current ? 'this run: ' : ''}${group.name}`;
      return [
        ...room,
        line(x, group.mean, name, colour, {
          mode: 'lines', text: x.map(() => plain(name, 40)),
          hovertemplate: '%{text}: %{y:.4~g} at %{x:.4~g}<extra></extra>',
          line: {
            width: group.is_current ? 3.5 : many ? 1 : 1.5, dash: group.is_current || many ? 'solid' : DASHES[place % 4],
          },
          opacity: many && !group.is_current ? 0.55 : 1,
        }),
      ];
    });
}

const losses = (told) => chart({
    id: 'train-losses', from: told, title: 'Do clients learn on their own data?',
    read: 'Mean of the training losses that the chosen clients told in each round. It should fall.',
    traces: (c) => [line(told.losses.x, told.losses.mean, 'told loss', c.accent)],
    layout: () => ({ xaxis: roundAxis, yaxis: { title: 'mean told loss' }, showlegend: false }),
  });

function view(told) {
  if (!told.groups.length && told.losses) return charts(losses(told));
  if (!told.groups.length)
    return empty('Nothing was measured of a model.', told.about.run == null
        ? 'This fleet’s server tells nothing of it here. Flower’s metrics are shown as soon as a round of it is over, ' +
          'and losses that clients tell with their reports.'
        : 'This run selected clients and measured their times without training a model. A run that trains a model ' +
          'shows its curves here.');
  const [by, unit] = timeUnit(Math.max(...told.groups.map((group) => group.seconds.at(-1) ?? 0)));
  const many = told.groups.length > MANY;
  const others = many ? ' Thin lines are the other policies: point at one to read its name.' : '';
  const title = { title: plain(told.metric) };
  const runs = Math.max(...told.groups.map((group) => group.runs ?? 1));
  const bands = told.groups.some((group) => group.half_width)
    ? ` Bands are 95 % confidence intervals over ${runs} runs with other seeds.`
    : '';
  return [
    told.metrics.length > 1 &&
      choice('Measure', told.metrics.map((name) => [name, name]), told.metric, (metric) => steer.go({ metric })),
    charts(
      chart({
        id: `train-rounds-${told.metric}`, from: told, height: 380,
        title: `How does ${told.metric} develop with each round?`,
        read: `${told.groups.length > 1 ? 'The thick line is the policy of this run.' : 'Measured after some rounds.'}` +
          `${others}${bands}`,
        traces: curves(told, 'rounds', 1),
        layout: () => ({ xaxis: roundAxis, yaxis: title, showlegend: !many }),
      }),
      chart({
        id: `train-seconds-${told.metric}`, from: told, height: 380,
        title: `How does ${told.metric} develop with time?`,
        read: `The same against the time that the rounds took: short rounds count here.${bands}`,
        traces: curves(told, 'seconds', by), layout: () => ({ xaxis: { title: unit }, yaxis: title, showlegend: !many }),
      }),
      told.losses && losses(told)),
  ];
}

export default {
  name: 'training', label: 'Training', asks: ({ metric }) => ({ training: { metric } }),
  view: (slots) => answer(slots.training, view),
};
