// Training: metrics of the model by round and by time, compared with other policies.
import { SMOOTHED, band, chart, line, roundAxis, timeUnit, withAverage } from './charts.js';
import { h } from './dom.js';
import { endNames, isNoisy, smoothed } from './lines.js';
import { MAX_GROUPS, colourOf, styleOf, transparent } from './palette.js';
import { charts, choice, empty, muted, navigation, renderSlot } from './parts.js';
import { plain, words } from './format.js';

const HEIGHT = 400;
const MAX_BANDS = 4; // with more lines, only this run and the highlighted one have a band
/** The curves that the charts show: that of this run, and the first others. */
function shownGroups(groups) {
  if (groups.length <= MAX_GROUPS) return groups;
  const others = groups.filter((group) => !group.is_current).slice(0, MAX_GROUPS - 1);
  return groups.filter((group) => group.is_current || others.includes(group));
}

const nameOf = (group) => `${group.is_current ? 'this run: ' : ''}${group.name}`;
const colour = (c, data, group) => (data.about.run == null ? c.accent : colourOf(c.series, group.name));

function curves(data, groups, field, by, highlighted) {
  const isFew = groups.length <= MAX_BANDS;
  return (c) =>
    groups.flatMap((group) => {
      const own = colour(c, data, group);
      const isFaint = highlighted != null && group.name !== highlighted;
      const x = group[field].map((value) => value / by);
      const name = nameOf(group);
      const isRough = isNoisy(group.mean);
      const style = {
        mode: 'lines', text: x.map(() => plain(name, 40)), customdata: x.map(() => group.name),
        hovertemplate: '%{text}: %{y:.4~g} at %{x:.4~g}<extra></extra>',
      };
      const width = group.is_current || group.name === highlighted ? 3.5 : 1.8;
      const dash = data.about.run == null ? 'solid' : styleOf(group.name).dash;
      return [
        ...(group.low && !isFaint && (isFew || group.is_current || group.name === highlighted) ? band(x, group.low, group.high, transparent(own)) : []),
        isRough && line(x, group.mean, `${name}, measured`, own,
          { ...style, showlegend: false, opacity: isFaint ? 0.1 : 0.35, line: { width: 1 } }),
        line(x, isRough ? smoothed(group.mean) : group.mean, name, own,
          { ...style, opacity: isFaint ? 0.25 : 1, line: { width, dash } }),
      ].filter(Boolean);
    });
}

function names(data, groups, highlighted) {
  const values = groups.flatMap((group) => [...group.mean, ...(group.low ?? []), ...(group.high ?? [])])
    .filter(Number.isFinite);
  return (c, width) =>
    endNames(
      groups.map((group) => ({
        name: group.name, colour: colour(c, data, group),
        y: (isNoisy(group.mean) ? smoothed(group.mean) : group.mean).findLast(Number.isFinite),
      })),
      {
        from: Math.min(...values), to: Math.max(...values), height: HEIGHT, width,
        faint: (name) => highlighted != null && name !== highlighted,
      });
}

const losses = (data) => chart({
    id: 'train-losses', from: data, title: 'Do the losses of clients fall?',
    caption: `Mean of the training losses that clients reported in each ${words.round}.${SMOOTHED}`,
    traces: (c) => withAverage(data.losses.x, data.losses.mean, 'reported loss', c.accent),
    layout: () => ({ xaxis: roundAxis, yaxis: { title: 'mean reported loss' }, showlegend: false }),
  });

function view(data, settings) {
  if (!data.groups.length && data.losses) return charts(losses(data));
  if (!data.groups.length)
    return empty('No metrics are recorded.', data.about.run == null
        ? 'This page shows the metrics of a Flower server as it trains, and losses that clients report.'
        : 'This run simulated selections and times without training a model. Metrics of runs that train a model are ' +
          'shown here.');
  const [by, unit] = timeUnit(Math.max(...data.groups.map((group) => group.seconds.at(-1) ?? 0)));
  const groups = shownGroups(data.groups);
  const highlighted = groups.some((group) => group.name === settings.show) ? settings.show : null;
  const highlight = (name) =>
    groups.length > 1 && navigation.update({ show: name === highlighted ? null : name }, { replace: true });
  const endsOf = names(data, groups, highlighted);
  const common = { from: data, state: highlighted, height: HEIGHT, click: highlight, named: highlight };
  const isTimed = data.about.slots != null;
  const after = isTimed ? (data.about.run == null ? 'decisions' : 'turns that have ended') : 'rounds';
  const others = groups.length > 1 ? ' Click a name or a line to highlight it.' : '';
  const rough = groups.some((group) => isNoisy(group.mean))
    ? ' Lines are smoothed by a moving average; faint lines are the measurements.' : '';
  const title = { title: plain(data.metric) };
  const runs = Math.max(...data.groups.map((group) => group.runs ?? 1));
  const bands = data.groups.some((group) => group.low)
    ? ` Bands are 95 % confidence intervals over ${runs} runs with different seeds, within the possible values.`
    : '';
  return [
    data.metrics.length > 1 &&
      choice('Metric', data.metrics.map((name) => [name, name]), data.metric,
        (metric) => navigation.update({ metric })),
    groups.length < data.groups.length &&
      muted(`The charts show ${groups.length} of ${data.groups.length} groups. Pick others on the page `,
        h('a', { href: navigation.link('runs') }, 'Runs'), '.'),
    charts(
      chart({
        id: `train-rounds-${data.metric}`, ...common,
        title: `How does ${data.metric} change with each ${isTimed ? 'turn' : 'round'}?`,
        caption:
          (data.groups.length > 1 ? 'The thick line is the policy of this run.' : `Values measured after ${after}.`) +
          `${others}${bands}${rough}`,
        traces: curves(data, groups, 'rounds', 1, highlighted),
        layout: (c, width) => ({
          xaxis: isTimed ? { ...roundAxis, isRounds: false, title: after } : roundAxis, yaxis: title, ...endsOf(c, width),
        }),
      }),
      chart({
        id: `train-seconds-${data.metric}`, ...common,
        title: `How does ${data.metric} change over time?`,
        caption: `The same values over ${isTimed ? 'time' : 'the cumulative duration of the rounds'}.${bands}${rough}`,
        traces: curves(data, groups, 'seconds', by, highlighted),
        layout: (c, width) => ({ xaxis: { title: unit }, yaxis: title, ...endsOf(c, width) }),
      }),
      data.losses && losses(data)),
  ];
}

export default {
  name: 'training', label: 'Training', isByRound: () => true, requests: ({ metric, pick }) => ({ training: { metric, runs: pick } }),
  view: (slots, settings) => renderSlot(slots.training, (data) => view(data, settings)),
};
