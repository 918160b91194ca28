// Overview: durations of rounds, debts, the certificate, warnings and outcomes.
import { SMOOTHED, band, chart, line, roundAxis, rule, withAverage } from './charts.js';
import { h } from './dom.js';
import {
  alarm, badge, box, card, cards, certificate, charts, clientLink, muted, navigation, renderSlot, roundLink, sinceOf,
  statusBadge, table,
} from './parts.js';
import { rateChart, slotCards, runningTurns } from './slots.js';
import { OUTCOMES, UNKNOWN, behind, count, number, percent, ratio, seconds, share, turns, words } from './format.js';

/** How much longer than the deadline a round or turn may take before it is called overdue. */
const GRACE = 1.1;
const isOverdue = (elapsed, deadline) => elapsed != null && deadline != null && elapsed > GRACE * deadline;

/** What is wrong with the open round or the oldest turn: overdue, or without a scheduler that could end it. */
export function neglect({ open, running, is_attended: isAttended }) {
  const oldest = running.find((turn) => turn.outcome === 'out');
  const [name, elapsed, deadline] = open ? [`Round ${count(open.round)}`, open.elapsed, open.deadline]
    : oldest ? [`Turn ${count(oldest.turn)}`, oldest.age, oldest.deadline] : [];
  if (!name || isAttended == null) return null;
  const nobody = 'no scheduler has the file open: start the server';
  if (isOverdue(elapsed, deadline)) {
    const why = isAttended ? 'its server does not end it' : nobody;
    return { level: 'error', text: `${name} is ${seconds(elapsed - deadline)} overdue, ${why}.`, id: null };
  }
  return isAttended ? null : { level: 'warning', text: `${name} has not ended, and ${nobody}.`, id: null };
}

function openRound(open) {
  if (!open) return null;
  const due = open.deadline == null ? null : GRACE * open.deadline;
  const clock = h('span', { 'data-elapsed': open.elapsed, 'data-due': due }, count(Math.floor(open.elapsed ?? 0)));
  return [
    `Round ${count(open.round)} is open: ${count(open.back)} of ${count(open.target_size)} returned, ` +
      `${count(open.out)} outstanding${open.failed ? `, ${count(open.failed)} failed` : ''}; `,
    clock, open.deadline ? ` s of ${count(open.deadline)} s.` : ' s.',
    h('progress', {
      max: Math.max(1, open.target_size ?? 1), value: open.back ?? 0,
      'aria-label': 'clients returned in the open round',
    }),
  ];
}

/** The comparison with random selection; null while there is none. */
const randomOf = ({ baseline }) => baseline?.data?.random ?? null;
const pendingComparison = ({ baseline }) =>
  baseline?.waiting && !baseline.data ? 'Comparing with random selection …' : baseline?.data?.reason;

const comparison = ({ ratio: part, how, half, value }) => [
  h('b', null, `${percent(Math.abs(1 - part))} ${part <= 1 ? 'shorter' : 'longer'} than random selection`),
  ` (${seconds(value)}${half ? ` ± ${seconds(half)}` : ''}, ${how})`,
];

const roundCards = (data, slots) => [
  card('Rounds closed', count(data.round), openRound(data.open), [
    `${seconds(data.total_time)} in total; last round: `, data.round ? roundLink(data.round) : '–',
  ]),
  card('Mean round duration', seconds(data.mean_round),
    randomOf(slots) ? comparison(randomOf(slots)) : pendingComparison(slots),
    data.recent_round != null &&
      `Mean of the last ${count(data.recent_of)}: ${seconds(data.recent_round)}; ` +
        `95th percentile: ${seconds(data.p95_round)}`),
];

function headCards(data, slots) {
  const promise = data.about.promise;
  const promised =
    promise &&
    (promise.least === promise.most ? share(promise.least) : `${share(promise.least)} to ${share(promise.most)}`);
  return cards(
    ...(data.slots ? slotCards(data, randomOf(slots), pendingComparison(slots)) : roundCards(data, slots)),
    certificate(data.about.certificate),
    card('Furthest behind', data.worst ? behind(data.worst.behind) : '–',
      data.worst
        ? [clientLink(data.worst.id), `: ${number(data.worst.turns)} of ${number(data.worst.promised)} promised turns`]
        : 'No turns are promised.',
      promise?.tolerance != null && `A client may be ${turns(promise.tolerance)} behind.`),
    card(`Smallest share of ${data.about.share_of}`, share(data.least_share),
      data.least && ['had by ', clientLink(data.least.id)],
      promised
        ? `Promised: ${promised} of ${promise.of}`
        : 'No share is promised.',
      data.slots && `Jain’s index: ${ratio(data.jain)}`),
    !data.slots &&
      card('Jain’s index', ratio(data.jain), '1 if all clients have had the same number of turns.',
        data.cohort != null &&
          `Mean cohort: ${number(data.cohort)} ${data.cohort === 1 ? 'client' : 'clients'}` +
            (data.available_count == null ? '' : ` of ${number(data.available_count)} available`)));
}

const LEVELS = { error: ['bad', 'Error'], warning: ['warn', 'Warning'], note: ['none', 'Note'] };
const warning = ({ level, text, id }) =>
  h('li', null, badge(...(LEVELS[level] ?? LEVELS.note)), h('span', null, id != null && [clientLink(id), ': '], text));

const EVENTS = { failed: 'bad', amended: 'warn' };
const latestEvents = (events) =>
  box('Latest events',
    table({
      caption: 'Failed turns, joins, departures and amendments, newest first', rows: events,
      columns: [
        { label: words.round, cell: (event) => (event.round ? roundLink(event.round) : 'before the first') },
        { label: 'event', text: true, cell: (event) => badge(EVENTS[event.kind] ?? 'none', event.kind) },
        { label: 'client or settings', text: true, cell: (event) => (event.id == null ? event.text : clientLink(event.id)) },
        { label: 'reason', text: true, cell: (event) => (event.id == null ? UNKNOWN : (event.text ?? UNKNOWN)) },
      ],
    }));

function view(data, slots) {
  const { rounds, shortfall } = data;
  const random = randomOf(slots);
  const warnings = [neglect(data), ...data.warnings].filter(Boolean);
  return [
    neglect(data)?.level === 'error' && alarm('Overdue', neglect(data).text),
    headCards(data, slots),
    charts(
      data.slots && rateChart(data, random),
      chart({
        id: 'overview-rounds', from: data, state: random?.value, title: `Are ${data.slots ? 'turns' : 'rounds'} getting shorter?`,
        caption: data.slots
          ? 'Seconds of a turn, failed and late clients included, by the decision that gave it. The line is the mean ' +
            'of the turns at a point, the band is their range.' + SMOOTHED
          : 'Seconds for which the server waited in a round, failed and late clients included. The line is the mean ' +
            'of the rounds at a point, the band is their range.' + SMOOTHED,
        traces: (c) => [
          ...band(rounds.x, rounds.low, rounds.high, c.band),
          ...withAverage(rounds.x, rounds.mean, 'mean duration', c.accent, {
            customdata: rounds.x, hovertemplate: `up to ${words.round} %{x:,d}: %{y:.2f} s<extra></extra>`,
          }),
        ],
        layout: (c) => ({
          xaxis: roundAxis, yaxis: { title: 'seconds', rangemode: 'tozero' }, showlegend: false,
          ...(random && !data.slots ? rule(c, 'y', random.value, 'random selection') : {}),
        }),
        click: (round) => navigation.open('rounds', { number: round }),
      }),
      shortfall &&
        chart({
          id: 'overview-shortfall', from: data, title: 'Was any client ever beyond the tolerance?',
          caption:
            'How many turns the client that was furthest behind its promise was behind, after each ' +
            `${words.round}. Above the ` +
            `line the promise is broken. The largest value so far: ${behind(shortfall.ever)}.`,
          traces: (c) => [
            line(shortfall.x, shortfall.largest, 'furthest behind', c.accent, {
              hovertemplate: `up to ${words.round} %{x:,d}: %{y:.2f} turns<extra></extra>`,
            }),
          ],
          layout: (c) => ({
            xaxis: roundAxis, yaxis: { title: 'turns behind', rangemode: 'tozero' }, showlegend: false,
            ...rule(c, 'y', shortfall.tolerance, 'tolerance', { color: c.bad }),
          }),
        })),
    data.slots && data.about.run == null && runningTurns(data),
    h('div', { class: 'charts' }, h('div', { class: 'content' },
      box('Warnings',
        warnings.length
          ? h('ul', { class: 'warnings' },
              Object.keys(LEVELS)
                .flatMap((level) => warnings.filter((item) => item.level === level))
                .map(warning))
          : muted('There are no warnings.')),
      box('Outcomes',
        table({
          caption: 'Turns by outcome',
          rows: Object.entries(data.outcomes).filter(([, total]) => total),
          columns: [
            { label: 'outcome', text: true, cell: ([name]) => name },
            { label: 'turns', cell: ([, total]) => count(total) },
            { label: 'the client', text: true, cell: ([name]) => OUTCOMES[name] ?? '' },
          ],
          none: 'No client has returned yet.',
        }))),
      data.events.length > 0 && latestEvents(data.events)),
    box('Furthest behind',
      table({
        caption: 'Clients that are furthest behind their promise', rows: data.behind, none: 'No client is behind.',
        columns: [
          { label: 'client', text: true, cell: (row) => clientLink(row.id) },
          { label: 'status', text: true, cell: (row) => statusBadge(row.status) },
          { label: 'behind (turns)', numeric: (row) => row.behind },
          { label: 'turns', numeric: (row) => row.turns },
          { label: 'promised (turns)', numeric: (row) => row.promised },
          { label: `share of ${data.about.share_of}`, cell: (row) => share(row.share) },
          {
            label: `last ${words.round}`, text: true,
            cell: (row) =>
              h('a',
                {
                  href: navigation.link('client', { id: row.id, round: data.round }),
                  title: `Explain the selection of ${words.round} ${count(data.round)} for this client`,
                },
                'explain'),
          },
        ],
      })),
  ];
}

export default {
  name: 'overview', label: 'Overview', isByRound: () => true,
  requests: (settings, { overview }) => ({
    overview: { since: sinceOf(settings) }, ...(overview?.data?.round > 0 && !overview.data.about.reading ? { baseline: {} } : {}),
  }),
  view: (slots) => renderSlot(slots.overview, (data) => view(data, slots)),
};
