// Compare: the policies of a store side by side, averaged over seeds.
import { chart, line, roundAxis, rule, timeUnit } from './charts.js';
import { h } from './dom.js';
import { info } from './glossary.js';
import { endNames } from './lines.js';
import { swatch } from './list.js';
import { MAX_GROUPS, colourOf, styleOf } from './palette.js';
import { box, charts, empty, muted, navigation, renderSlot, statusBadge, table } from './parts.js';
import { count, digitsFor, plain, plural, plusMinus, share, words } from './format.js';

const PERCENT = () => [0.01, '%'];
const TURNS = () => [1, 'turns'];
const PLAIN = () => [1, ''];
const POSITIVE = [0, Infinity];
const UNIT = [0, 1];
/**
 * Field, label, term of the glossary, [divisor, unit] as a function of the largest mean, decimals, 1 if larger is
 * better, else -1, and the possible values.
 */
const SPEED = [
  ['mean_round', 'mean round', 'mean round', timeUnit, null, -1, POSITIVE],
  ['p95_round', '95th percentile', '95th percentile', timeUnit, null, -1, POSITIVE],
];
/** The same for turns without rounds. */
const RATE = [
  ['rate', 'updates', 'updates', () => [1, 'per second'], null, 1, POSITIVE],
  ['mean_turn', 'mean turn', 'turn', timeUnit, null, -1, POSITIVE],
  ['staleness', 'mean staleness', 'staleness', PLAIN, null, -1, POSITIVE],
];
const MEASURES = [
  ['least_share', 'smallest share', 'smallest share', PERCENT, 1, 1, UNIT],
  ['jain', 'Jain’s index', 'Jain’s index', PLAIN, 3, 1, UNIT],
  ['worst_shortfall', 'largest shortfall', 'shortfall', TURNS, 2, -1, POSITIVE],
  ['accuracy', 'accuracy', 'accuracy', PLAIN, 3, 1, UNIT],
];
function measures(groups, { slots }, shareOf) {
  const speed = slots == null ? SPEED : RATE;
  const playable = groups.filter((group) => !group.true_times); // the others cannot be played with real clients
  return [...speed, ...MEASURES].filter(([field]) => groups.some((group) => group[field]?.mean != null)).map(
    ([field, label, term, unitFor, digits, better, limits]) => {
      const [by, unit] = unitFor(Math.max(...groups.map((group) => group[field]?.mean ?? 0)));
      const best = Math.max(
        ...playable.map((group) => (group[field]?.mean == null ? -Infinity : better * group[field].mean)));
      const known = groups.filter((group) => group[field]?.mean != null);
      const decimals = digits ?? Math.max(...known.map((group) => digitsFor(group[field].mean / by)));
      const isBest = (group) =>
        playable.length > 1 && !group.true_times && group[field]?.mean != null && better * group[field].mean === best;
      return {
        key: field, optional: field === 'p95_round',
        label: `${field === 'least_share' ? `${label} ${shareOf ?? ''}` : label}${unit ? ` (${unit})` : ''}`,
        info: info(term),
        cell: (group) => [
          plusMinus(group[field], by, decimals, limits),
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

/** The groups that charts show: all, or that of this run and the first ones. */
function shownGroups(groups) {
  if (groups.length <= MAX_GROUPS) return groups;
  const others = groups.filter((group) => !group.is_current).slice(0, MAX_GROUPS - 1);
  return groups.filter((group) => group.is_current || others.includes(group));
}

function groupTable({ groups, about, share_of: shareOf }, highlighted, highlight) {
  return table({
    caption: 'Runs that differ only in their seed form a group', rows: groups, choosable: true,
    current: (group) => group.name === highlighted,
    columns: [
      {
        label: 'group', text: true,
        cell: (group) =>
          h('span', { class: 'run' },
            h('button',
              {
                type: 'button', class: 'swatch-button', 'aria-pressed': String(group.name === highlighted),
                'aria-label': `Highlight ${group.name}`, title: 'Highlight this group in the charts',
                onclick: () => highlight(group.name),
              },
              swatch(group.name)),
            h('a',
              {
                href: navigation.link('overview', { run: group.runs[0] }),
                title: 'Open the first run of this group',
              },
              group.name),
            group.true_times && [h('span', { class: 'flag' }, 'true times'), info('true times')]),
      },
      groups.some((group) => group.status) && {
        label: 'promise', text: true, info: info('status'),
        cell: (group) => group.status && statusBadge(group.status),
      },
      ...measures(groups, about, shareOf),
      {
        key: 'rounds', label: words.rounds, cell: (group) => count(group.rounds),
        optional: new Set(groups.map((group) => group.rounds)).size === 1,
      },
      { key: 'runs', label: 'runs', cell: (group) => count(group.runs.length) },
    ].filter(Boolean),
  });
}

function frontChart(data, groups, highlighted, highlight) {
  const isTimed = data.about.slots != null;
  const front = groups
    .map((group) => ({ ...group, mean_round: group.mean_round.mean, least_share: group.least_share?.mean }))
    .filter((point) => point.least_share != null);
  const best = paretoFront(front.filter((point) => !point.true_times));
  return chart({
    id: 'compare-front', from: data, state: highlighted, height: 400, title: 'What does fairness cost?',
    caption:
      `Each mark is a group. Marks further left have ${isTimed ? 'more updates' : 'shorter rounds'}, marks ` +
      'further up give more turns to the client with the fewest. The line is the Pareto front: no other group is ' +
      'better in both. Hollow marks are given the true times and are not on the front.',
    traces: (c) => [
      {
        type: 'scatter', mode: 'lines', name: 'Pareto front', x: best.map((point) => point.mean_round),
        y: best.map((point) => point.least_share),
        line: { color: c.muted, width: 1 }, hoverinfo: 'skip', showlegend: false,
      },
      ...front.map((point) => {
        const { symbol } = styleOf(point.name);
        const isHollow = point.true_times;
        return {
          type: 'scatter', mode: point.name === highlighted ? 'markers+text' : 'markers', name: plain(point.name, 32),
          x: [point.mean_round], y: [point.least_share], text: [plain(point.name, 40)], textposition: 'top right',
          textfont: { size: 11, color: c.ink }, cliponaxis: false, customdata: [point.name],
          opacity: highlighted && point.name !== highlighted ? 0.3 : 1,
          hovertemplate: '%{text}: %{x:.2f} s, smallest share %{y:.1%}<extra></extra>',
          marker: {
            size: point.name === highlighted ? 16 : 12, color: colourOf(c.series, point.name),
            symbol: isHollow ? `${symbol}-open` : symbol, line: { width: isHollow ? 2 : 0 },
          },
        };
      }),
    ],
    layout: (c) => ({
      xaxis: {
        title: isTimed ? 'seconds from one decision to the next' : 'mean round duration (seconds)',
        rangemode: 'tozero',
      },
      yaxis: { title: `smallest share ${data.share_of ?? ''}`, tickformat: '.3~p', rangemode: 'tozero' },
      showlegend: true,
      ...(data.reference_rate == null ? {} : rule(c, 'y', data.reference_rate, 'promised', { right: true })),
    }),
    click: highlight,
  });
}

function curveChart(data, groups, highlighted, highlight) {
  const isTimed = data.about.slots != null;
  const curves = groups.map((group) => ({ name: group.name, ...group.curve }));
  const current = groups.find((group) => group.is_current)?.name;
  const [by, unit] = timeUnit(Math.max(...curves.map((curve) => curve.seconds.at(-1) ?? 0)));
  const isFaint = (name) => highlighted != null && name !== highlighted;
  return chart({
    id: 'compare-curves', from: data, state: highlighted, height: 400, title: 'Which policy finishes first?',
    caption: (isTimed ? 'When each turn was given. A flatter line means more turns per second.'
      : 'Cumulative duration of the rounds. A flatter line means shorter rounds.') +
      ' The thick line is this run. Click a name or a line to highlight it.',
    traces: (c) =>
      curves.map((curve) =>
        line(curve.x, curve.seconds.map((value) => value / by), curve.name, colourOf(c.series, curve.name),
          {
            mode: 'lines', opacity: isFaint(curve.name) ? 0.25 : 1, customdata: curve.x.map(() => curve.name),
            line: {
              dash: styleOf(curve.name).dash, width: [current, highlighted].includes(curve.name) ? 3.5 : 1.8,
            },
            text: curve.x.map(() => plain(curve.name, 40)),
            hovertemplate: `%{text}, ${words.round} %{x:,d}: %{y:.1f} ${unit}<extra></extra>`,
          })),
    layout: (c, width) => ({
      xaxis: roundAxis, yaxis: { title: `duration (${unit})`, rangemode: 'tozero' },
      ...endNames(
        curves.map((curve) => ({
          name: curve.name, y: (curve.seconds.at(-1) ?? 0) / by, colour: colourOf(c.series, curve.name),
        })),
        {
          from: 0, to: Math.max(...curves.map((curve) => curve.seconds.at(-1) ?? 0)) / by, height: 400, width,
          faint: isFaint,
        }),
    }),
    click: highlight,
    named: highlight,
  });
}

function view(data, settings) {
  if (data.empty_reason || !data.groups.length)
    return empty('No other runs to compare',
      data.empty_reason ??
        'Add runs of other policies or seeds to this store to see them here side by side.');
  const { groups, reference_rate: referenceRate } = data;
  const shown = shownGroups(groups);
  const highlighted = shown.some((group) => group.name === settings.show) ? settings.show : null;
  const highlight = (name) => navigation.update({ show: name === highlighted ? null : name }, { replace: true });
  return [
    box('Groups', groupTable(data, highlighted, highlight),
      referenceRate != null &&
        muted(`All policies are judged by the same promise: ${share(referenceRate)} ${data.share_of}. The shortfall is ` +
          'how far any client was ever behind it, and the status that of the worst moment, in the worst run of a group.'),
      muted('± is the half-width of the 95 % confidence interval over the runs of a group. ',
        'If intervals overlap, “best” may be due to chance. A policy that is given the true times is never “best”.'),
      data.left_out > 0 && muted(`${plural(data.left_out, 'picked run')} in other worlds cannot be compared with these.`),
      shown.length < groups.length &&
        muted(`The charts show ${shown.length} of ${groups.length} groups: that of this run and those with the ` +
          'shortest rounds. Pick others on the page ', h('a', { href: navigation.link('runs') }, 'Runs'), '.')),
    charts(frontChart(data, shown, highlighted, highlight), curveChart(data, shown, highlighted, highlight)),
  ];
}

export default {
  name: 'compare', label: 'Compare', requests: ({ pick }) => ({ compare: { runs: pick } }),
  view: (slots, settings) => renderSlot(slots.compare, (data) => view(data, settings)),
  worksWithoutRounds: true,
};
