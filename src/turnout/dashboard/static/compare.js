// Compare: the runs of a store side by side, policy by policy, over their seeds.
import { MANY, chart, line, roundAxis, rule, timeUnit } from './charts.js';
import { h } from './dom.js';
import { answer, box, charts, empty, muted, steer, table } from './parts.js';
import { count, plain, plusMinus } from './words.js';

const PERCENT = () => [0.01, '%'];
const TURNS = () => [1, 'turns'];
const PLAIN = () => [1, ''];
/** Field, label, [divisor, unit] for the largest mean, digits after the point, and 1 where more is better, else -1. */
const MEASURES = [
  ['mean_round', 'mean round', timeUnit, null, -1], ['p95_round', '19 in 20 within', timeUnit, null, -1],
  ['least_share', 'least share of rounds', PERCENT, 1, 1],
  ['jain', 'Jain’s index', PLAIN, 3, 1], ['worst_debt', 'most owed', TURNS, null, -1],
  ['accuracy', 'accuracy', PLAIN, 3, 1],
];
const DASHES = ['solid', 'dash', 'dot', 'dashdot', 'longdash'];
const SYMBOLS = ['circle', 'square', 'diamond', 'triangle-up', 'cross', 'x', 'star', 'hexagon'];

function measures(groups) {
  return MEASURES.filter(([field]) => groups.some((group) => group[field]?.mean != null)).map(
    ([field, label, unitFor, digits, better]) => {
      const [by, unit] = unitFor(Math.max(...groups.map((group) => group[field]?.mean ?? 0)));
      const best = Math.max(
        ...groups.map((group) => (group[field]?.mean == null ? -Infinity : better * group[field].mean)));
      const first = (group) => groups.length > 1 && group[field]?.mean != null && better * group[field].mean === best;
      return {
        label: unit ? `${label} (${unit})` : label,
        cell: (group) => [
          plusMinus(group[field], by, digits),
          first(group) && h('span', { class: 'flag ok', title: 'The best mean of this column' }, 'best'),
        ],
      };
    });
}

/** Those that no other beats in both: shorter rounds and a larger least share. */
const unbeaten = (all) => all
    .filter((one) =>
        !all.some((other) => other !== one &&
            other.mean_round <= one.mean_round &&
            other.least_share >= one.least_share &&
            (other.mean_round < one.mean_round || other.least_share > one.least_share)))
    .sort((a, b) => a.mean_round - b.mean_round);

function view(told) {
  if (told.why_not || !told.groups.length)
    return empty('There is nothing to compare',
      told.why_not ??
        'This store holds one run. Play other policies or seeds into it, and they are shown here side by side.');
  const { groups, curves, yardstick } = told;
  const front = told.front.filter((one) => one.mean_round != null && one.least_share != null);
  const best = unbeaten(front);
  const [by, unit] = timeUnit(Math.max(...curves.map((curve) => curve.seconds.at(-1) ?? 0)));
  const colour = (c, name) => Math.max(0, groups.findIndex((group) => group.name === name));
  const many = groups.length > MANY;
  const now = groups.find((group) => group.is_current)?.name;
  const named = new Set(many ? [now, ...best.map((one) => one.name)] : []);
  const shade = (c, name) =>
    !many ? c.series[colour(c, name) % c.series.length] : name === now ? c.accent : c.muted;
  return [
    box('Groups',
      table({
        caption: 'Runs that differ only in their seed form a group', rows: groups,
        columns: [
          {
            label: 'group', text: true,
            cell: (group) =>
              h('a', { href: steer.address('overview', { run: group.runs[0] }), title: 'Its first run' }, group.name),
          },
          ...measures(groups),
          { label: 'rounds', cell: (group) => count(group.rounds) },
          { label: 'runs', cell: (group) => count(group.runs.length) },
        ],
      }),
      muted('± is half of the 95 % confidence interval over the runs of a group. ',
        'Where intervals overlap, “best” may be chance.')),
    charts(
      chart({
        id: 'compare-front', from: told, height: 380, title: 'What does fairness cost?',
        read: 'Each mark is a group: further left are shorter rounds, further up a fairer share for the ' +
          'worst-off client. The line joins those that no other beats in both.',
        traces: (c) => [
          {
            type: 'scatter', mode: 'lines', x: best.map((one) => one.mean_round), y: best.map((one) => one.least_share),
            line: { color: c.muted, width: 1 }, hoverinfo: 'skip', showlegend: false,
          },
          ...front.map((one) => {
            const at = colour(c, one.name);
            return {
              type: 'scatter', mode: named.has(one.name) ? 'markers+text' : 'markers', name: plain(one.name, 32),
              x: [one.mean_round], y: [one.least_share], text: [plain(one.name, 40)], textposition: 'top left',
              textfont: { size: 11, color: c.ink }, cliponaxis: false,
              hovertemplate: '%{text}: %{x:.2f} s, least share %{y:.1%}<extra></extra>',
              marker: {
                size: one.name === now ? 14 : many ? 9 : 12, color: shade(c, one.name),
                symbol: SYMBOLS[at % SYMBOLS.length],
              },
            };
          }),
        ],
        layout: (c) => ({
          xaxis: { title: 'mean round (seconds)', rangemode: 'tozero' },
          yaxis: { title: 'least share of the rounds', tickformat: '.3~p', rangemode: 'tozero' },
          showlegend: !many,
          ...(yardstick == null ? {} : rule(c, 'y', yardstick, 'promised', { right: true })),
        }),
      }),
      chart({
        id: 'compare-curves', from: told, height: 380, title: 'Which is through first?',
        read: 'Time since the first round, added up. The flatter a line, the shorter its rounds.' +
          (many ? ' The thick line is this run; point at another to read its name.' : ''),
        traces: (c) =>
          curves.map((curve) => {
            const at = colour(c, curve.name);
            return line(curve.x, curve.seconds.map((value) => value / by), curve.name, shade(c, curve.name),
              {
                mode: 'lines', opacity: many && curve.name !== now ? 0.55 : 1,
                line: many
                  ? { width: curve.name === now ? 3.5 : 1 } : { dash: DASHES[at % DASHES.length] },
                text: curve.x.map(() => plain(curve.name, 40)),
                hovertemplate: `%{text}, round %{x:,d}: %{y:.1f} ${unit}<extra></extra>`,
              });
          }),
        layout: () => ({ xaxis: roundAxis, yaxis: { title: unit, rangemode: 'tozero' }, showlegend: !many }),
      })),
  ];
}

export default {
  name: 'compare', label: 'Compare', asks: () => ({ compare: {} }), view: (slots) => answer(slots.compare, view),
  without: true,
};
