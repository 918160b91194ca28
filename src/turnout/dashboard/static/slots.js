// Turns without rounds: the parts of Overview and of the page of decisions that only they have.
import { SMOOTHED, chart, roundAxis, rule, withAverage } from './charts.js';
import { h } from './dom.js';
import { badge, box, card, clientLink, navigation, roundLink, table } from './parts.js';
import { OUTCOMES, UNKNOWN, count, number, plural, rate, seconds } from './format.js';

export const LEVELS = { arrived: 'ok', late: 'warn', failed: 'bad' };
export const outcomeBadge = (outcome) =>
  h('span', { title: OUTCOMES[outcome] }, badge(LEVELS[outcome] ?? 'none', outcome));

const clock = (age) =>
  age == null ? UNKNOWN : [h('span', { 'data-elapsed': age }, count(Math.floor(age))), '\u202fs'];
/** 4 updates, 1 version */
export const staleness = (value, unit) =>
  value == null ? UNKNOWN : `${number(value)} ${value === 1 ? unit.slice(0, -1) : unit}`;

export const slotCards = (
  { slots, round, about, available_count, mean_round: mean, p95_round: p95, running: out }, random, pending,
) => [
  card('Turns given', count(round),
    about.run == null ? `${count(out.length)} of ${plural(slots.of, 'slot')} ${out.length === 1 ? 'is' : 'are'} in use` : plural(slots.of, 'slot'),
    available_count != null && `Mean number of idle clients at a decision: ${number(available_count)}`,
    [`${seconds(slots.elapsed)} in total; last decision: `, round ? roundLink(round) : UNKNOWN]),
  card('Updates', rate(slots.rate),
    random ? [h('b', null, `${number(random.ratio)} × random selection`), ` (${rate(random.value)}, ${random.how})`] : pending,
    slots.recent_rate != null && `Over the last ${count(slots.recent_of)} decisions: ${rate(slots.recent_rate)}`),
  card('Mean turn', seconds(mean), `95th percentile: ${seconds(p95)}`,
    slots.staleness != null &&
      `Staleness: ${staleness(slots.staleness, slots.stale_in)} in the mean, ` +
        `${number(slots.largest_staleness)} at most`),
];

export const rateChart = (data, random) => {
  const { curve } = data.slots;
  return chart({
    id: 'overview-rate', from: data, state: random?.value, title: 'How many updates arrive?',
    caption: 'Updates per second, between the decisions at two points. Failed and late turns bring no update.' +
      SMOOTHED,
    traces: (c) => [
      ...withAverage(curve.x, curve.rate, 'updates per second', c.accent, {
        customdata: curve.x, hovertemplate: 'up to decision %{x:,d}: %{y:.3~g} per second<extra></extra>',
      }),
    ],
    layout: (c) => ({
      xaxis: roundAxis, yaxis: { title: 'updates per second', rangemode: 'tozero' }, showlegend: false,
      ...(random ? rule(c, 'y', random.value, 'random selection') : {}),
    }),
    click: (decision) => navigation.open('rounds', { number: decision }),
  });
};

export const runningTurns = ({ running: rows, slots }) =>
  box('Running turns',
    table({
      caption: `Turns that have not ended, the oldest first (${plural(slots.of, 'slot')})`, rows,
      none: 'No client is training.',
      columns: [
        { label: 'turn', cell: (row) => roundLink(row.turn) },
        { label: 'client', text: true, cell: (row) => clientLink(row.id, { round: row.turn }) },
        { label: 'age', cell: (row) => (row.outcome === 'out' ? clock(row.age) : UNKNOWN) },
        { label: 'deadline', cell: (row) => seconds(row.deadline) },
        {
          label: 'state', text: true,
          cell: (row) =>
            row.outcome === 'out'
              ? row.age != null && row.deadline != null && row.age >= row.deadline
                ? badge('warn', 'late with the next fill') : 'training'
              : [outcomeBadge(row.outcome), ' its slot is free with the next fill'],
        },
        { label: 'behind (turns)', numeric: (row) => row.behind },
        {
          label: 'price of its turn', title: 'Urgent clients are chosen before all others, at no price',
          cell: (row) => (row.price === 0 ? 'urgent' : seconds(row.price)),
        },
      ],
    }));

/** The columns of the list of decisions. */
export const decisionColumns = [
  { label: 'decision', cell: (row) => roundLink(row.round) },
  { label: 'client', text: true, cell: (row) => clientLink(row.turn.id, { round: row.round }) },
  { label: 'outcome', text: true, cell: (row) => outcomeBadge(row.turn.outcome) },
  { label: 'duration', duration: (row) => row.seconds },
  { label: 'predicted', duration: (row) => row.turn.predicted },
  {
    label: 'staleness', title: 'Updates that arrived, or versions that were made, while it was running',
    numeric: (row) => row.turn.staleness,
  },
  { label: 'idle clients', title: 'Clients of which it was chosen', cell: (row) => count(row.available_count) },
];
