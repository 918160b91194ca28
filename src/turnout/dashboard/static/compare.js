// Compare: the policies of a store side by side, averaged over seeds.
import { LEGEND_LIMIT, chart, line, roundAxis, rule, timeUnit } from './charts.js';
import { h } from './dom.js';
import { box, charts, empty, muted, navigation, renderSlot, table } from './parts.js';
import { count, plain, plusMinus, share, words } from './format.js';

const PERCENT = () => [0.01, '%'];
const TURNS = () => [1, 'turns'];
const PLAIN = () => [1, ''];
/** Field, label, [divisor, unit] as a function of the largest mean, decimals, and 1 if larger is better, else -1. */
const SPEED = [
  ['mean_round', 'mean round', timeUnit, null, -1], ['p95_round', '95th percentile', timeUnit, null, -1],
];
/** The same for turns without rounds. */
const RATE = [
  ['rate', 'updates', () => [1, 'per second'], null, 1], ['mean_turn', 'mean turn', timeUnit, null, -1],
  ['staleness', 'mean staleness', PLAIN, null, -1],
];
const MEASURES = [
  ['least_share', 'smallest share', PERCENT, 1, 1],
  ['jain', 'Jain’s index', PLAIN, 3, 1], ['shortfall', 'largest shortfall at any time', TURNS, null, -1],
  ['accuracy', 'accuracy', PLAIN, 3, 1],
];
const DASHES = ['solid', 'dash', 'dot', 'dashdot', 'longdash'];
const SYMBOLS = ['circle', 'square', 'diamond', 'triangle-up', 'cross', 'x', 'star', 'hexagon'];

function measures(groups, { slots }) {
  const speed = slots == null ? SPEED : RATE;
  return [...speed, ...MEASURES].filter(([field]) => groups.some((group) => group[field]?.mean != null)).map(
    ([field, label, unitFor, digits, better]) => {
      const [by, unit] = unitFor(Math.max(...groups.map((group) => group[field]?.mean ?? 0)));
      const best = Math.max(
        ...groups.map((group) => (group[field]?.mean == null ? -Infinity : better * group[field].mean)));
      const isBest = (group) => groups.length > 1 && group[field]?.mean != null && better * group[field].mean === best;
      return {
        label: unit ? `${label} (${unit})` : label,
        cell: (group) => [
          plusMinus(group[field], by, digits),
          isBest(group) && h('span', { class: 'flag ok', title: 'Best mean of this column' }, 'best'),
        ],
      };
    });
}

/** The Pareto front: groups that no other group dominates in duration and smallest share. */
const paretoFront = (all) => all
    .filter((group) =>
        !all.some((other) => other !== group &&
            other.mean_round <= group.mean_round &&
            other.least_share >= group.least_share &&
            (other.mean_round < group.mean_round || other.least_share > group.least_share)))
    .sort((a, b) => a.mean_round - b.mean_round);

function view(data) {
  if (data.empty_reason || !data.groups.length)
    return empty('No other runs to compare',
      data.empty_reason ??
        'Add runs of other policies or seeds to this store to see them here side by side.');
  const { groups, curves, reference_rate: referenceRate } = data;
  const isTimed = data.about.slots != null;
  const front = data.front.filter((group) => group.mean_round != null && group.least_share != null);
  const best = paretoFront(front);
  const [by, unit] = timeUnit(Math.max(...curves.map((curve) => curve.seconds.at(-1) ?? 0)));
  const positionOf = (name) => Math.max(0, groups.findIndex((group) => group.name === name));
  const isCrowded = groups.length > LEGEND_LIMIT;
  const current = groups.find((group) => group.is_current)?.name;
  const labelled = new Set(isCrowded ? [current, ...best.map((group) => group.name)] : []);
  const shade = (c, name) =>
    !isCrowded ? c.series[positionOf(name) % c.series.length] : name === current ? c.accent : c.muted;
  return [
    box('Groups',
      table({
        caption: 'Runs that differ only in their seed form a group', rows: groups,
        columns: [
          {
            label: 'group', text: true,
            cell: (group) =>
              h('a',
                {
                  href: navigation.link('overview', { run: group.runs[0] }),
                  title: 'Open the first run of this group',
                },
                group.name),
          },
          ...measures(groups, data.about),
          { label: words.rounds, cell: (group) => count(group.rounds) },
          { label: 'runs', cell: (group) => count(group.runs.length) },
        ],
      }),
      referenceRate != null &&
        muted(`The shortfall is how far any client was ever behind ${share(referenceRate)} of all ${words.rounds}, ` +
          'for all policies alike.'),
      muted('± is the half-width of the 95 % confidence interval over the runs of a group. ',
        'If intervals overlap, “best” may be due to chance.')),
    charts(
      chart({
        id: 'compare-front', from: data, height: 380, title: 'What does fairness cost?',
        caption:
          `Each mark is a group. Marks further left have ${isTimed ? 'more updates' : 'shorter rounds'}, marks ` +
          'further up give more turns to the client with the fewest. The line is the Pareto front: no other group is ' +
          'better in both.',
        traces: (c) => [
          {
            type: 'scatter', mode: 'lines', x: best.map((group) => group.mean_round),
            y: best.map((group) => group.least_share),
            line: { color: c.muted, width: 1 }, hoverinfo: 'skip', showlegend: false,
          },
          ...front.map((group) => {
            const position = positionOf(group.name);
            return {
              type: 'scatter', mode: labelled.has(group.name) ? 'markers+text' : 'markers', name: plain(group.name, 32),
              x: [group.mean_round], y: [group.least_share], text: [plain(group.name, 40)], textposition: 'top left',
              textfont: { size: 11, color: c.ink }, cliponaxis: false,
              hovertemplate: '%{text}: %{x:.2f} s, smallest share %{y:.1%}<extra></extra>',
              marker: {
                size: group.name === current ? 14 : isCrowded ? 9 : 12, color: shade(c, group.name),
                symbol: SYMBOLS[position % SYMBOLS.length],
              },
            };
          }),
        ],
        layout: (c) => ({
          xaxis: {
            title: isTimed ? 'seconds from one decision to the next' : 'mean round duration (seconds)',
            rangemode: 'tozero',
          },
          yaxis: { title: `smallest share of all ${words.rounds}`, tickformat: '.3~p', rangemode: 'tozero' },
          showlegend: !isCrowded,
          ...(referenceRate == null ? {} : rule(c, 'y', referenceRate, 'promised', { right: true })),
        }),
      }),
      chart({
        id: 'compare-curves', from: data, height: 380, title: 'Which policy finishes first?',
        caption: (isTimed ? 'When each turn was given. A flatter line means more turns per second.'
          : 'Cumulative duration of the rounds. A flatter line means shorter rounds.') +
          (isCrowded ? ' The thick line is this run; hover over another line to see its name.' : ''),
        traces: (c) =>
          curves.map((curve) => {
            const position = positionOf(curve.name);
            return line(curve.x, curve.seconds.map((value) => value / by), curve.name, shade(c, curve.name),
              {
                mode: 'lines', opacity: isCrowded && curve.name !== current ? 0.55 : 1,
                line: isCrowded
                  ? { width: curve.name === current ? 3.5 : 1 } : { dash: DASHES[position % DASHES.length] },
                text: curve.x.map(() => plain(curve.name, 40)),
                hovertemplate: `%{text}, ${words.round} %{x:,d}: %{y:.1f} ${unit}<extra></extra>`,
              });
          }),
        layout: () => ({ xaxis: roundAxis, yaxis: { title: unit, rangemode: 'tozero' }, showlegend: !isCrowded }),
      })),
  ];
}

export default {
  name: 'compare', label: 'Compare', requests: () => ({ compare: {} }),
  view: (slots) => renderSlot(slots.compare, view),
  worksWithoutRounds: true,
};
