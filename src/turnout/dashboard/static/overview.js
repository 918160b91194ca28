// Overview: how long rounds take, who is owed most, whether the promise is kept, and what needs attention.
import { band, chart, line, roundAxis, rule } from './charts.js';
import { h } from './dom.js';
import {
  answer, badge, box, card, cards, certificate, charts, clientLink, muted, roundLink, steer, table,
} from './parts.js';
import { OUTCOMES, count, index, number, percent, seconds, share, turns } from './words.js';

function openRound(open) {
  if (!open) return null;
  const clock = h('span', { 'data-elapsed': open.elapsed }, count(Math.floor(open.elapsed ?? 0)));
  return [
    `Round ${count(open.round)} is open: ${count(open.back)} of ${count(open.wanted)} back, ${count(open.out)} ` +
      `out${open.failed ? `, ${count(open.failed)} failed` : ''}; `,
    clock, open.deadline ? ` of ${count(open.deadline)} s.` : ' s.',
    h('progress', {
      max: Math.max(1, open.wanted ?? 1), value: open.back ?? 0, 'aria-label': 'clients back in the open round',
    }),
  ];
}

const saved = ({ saved: part, how, mean_round: mean }) => [
  h('b', null, part >= 0 ? `${percent(part)} shorter than random` : `${percent(-part)} longer than random`),
  ` (${seconds(mean)}, ${how})`,
];

function headCards(told) {
  const promise = told.about.promise;
  const promised =
    promise &&
    (promise.least === promise.most ? share(promise.least) : `${share(promise.least)} to ${share(promise.most)}`);
  return cards(
    card('Rounds closed', count(told.round), openRound(told.open), [
      `${seconds(told.total_time)} in all; newest: `, told.round ? roundLink(told.round) : '–',
    ]),
    card('Mean round', seconds(told.mean_round), told.random && saved(told.random),
      told.recent_round != null &&
        `Last ${count(told.recent_of)}: ${seconds(told.recent_round)}; 19 in 20 within ${seconds(told.p95_round)}`),
    certificate(told.certificate),
    card('Most owed', told.worst ? turns(told.worst.owed) : '–',
      told.worst ? ['to ', clientLink(told.worst.id)] : 'Nobody is owed a turn.',
      promise?.cap != null && `Nobody can be owed more than ${turns(promise.cap)}.`),
    card('Least share of the rounds', share(told.least_share), told.least && ['taken by ', clientLink(told.least.id)],
      promised
        ? `Promised: ${promised} of the rounds${promise.accrual === 'available' ? ' it is there for' : ''}`
        : 'No share is promised.'),
    card('Evenness', index(told.jain), 'Jain’s index of the turns: 1 where all have had the same.',
      told.cohort != null &&
        `${number(told.cohort)} chosen a round${told.volunteers == null ? '' : ` of ${number(told.volunteers)} there`}`));
}

const LEVELS = { error: ['bad', 'Error'], warning: ['warn', 'Warning'], note: ['none', 'Note'] };
const warning = ({ level, text, id }) =>
  h('li', null, badge(...(LEVELS[level] ?? LEVELS.note)), h('span', null, id != null && [clientLink(id), ': '], text));

function view(told) {
  const { rounds, debts } = told;
  return [
    headCards(told),
    charts(
      chart({
        id: 'overview-rounds', from: told, title: 'Are rounds getting shorter?',
        read: 'Seconds from the choice to the last client that was waited for. The line is the mean, the band ' +
          'reaches from the shortest to the longest of the rounds that share a point.',
        traces: (c) => [
          ...band(rounds.x, rounds.low, rounds.high, c.band),
          line(rounds.x, rounds.mean, 'mean round', c.accent, {
            customdata: rounds.x, hovertemplate: 'from round %{x:,d}: %{y:.2f} s<extra></extra>',
          }),
        ],
        layout: (c) => ({
          xaxis: roundAxis, yaxis: { title: 'seconds', rangemode: 'tozero' }, showlegend: false,
          ...(told.random ? rule(c, 'y', told.random.mean_round, 'random') : {}),
        }),
        click: (round) => steer.to('rounds', { number: round }),
      }),
      debts &&
        chart({
          id: 'overview-debts', from: told, title: 'Do debts stay bounded?',
          read: 'Turns owed to the client that is owed most, and to the average client. A curve that flattens is ' +
            'a promise that is being kept; one that climbs is not.',
          traces: (c) => [
            line(debts.x, debts.worst, 'most owed', c.bad),
            line(debts.x, debts.mean, 'mean', c.accent, { line: { dash: 'dot' } }),
          ],
          layout: () => ({ xaxis: roundAxis, yaxis: { title: 'turns owed', rangemode: 'tozero' } }),
        })),
    h('div', { class: 'charts' },
      box('Warnings',
        told.warnings.length
          ? h('ul', { class: 'warnings' },
              Object.keys(LEVELS)
                .flatMap((level) => told.warnings.filter((one) => one.level === level))
                .map(warning))
          : muted('Nothing needs attention.')),
      box('Outcomes',
        table({
          caption: 'What became of those who were chosen',
          rows: Object.entries(told.outcomes).filter(([, many]) => many),
          columns: [
            { label: 'outcome', text: true, cell: ([name]) => name },
            { label: 'clients', cell: ([, many]) => count(many) },
            { label: 'which is', text: true, cell: ([name]) => OUTCOMES[name] ?? '' },
          ],
          none: 'Nobody has come back yet.',
        }))),
    box('Who is behind',
      table({
        caption: 'Clients that are owed most', rows: told.behind, none: 'Nobody is owed a turn.',
        columns: [
          { label: 'client', text: true, cell: (row) => clientLink(row.id) },
          { label: 'owed (turns)', cell: (row) => number(row.owed) },
          { label: 'turns taken', cell: (row) => count(row.turns) },
          { label: 'share of the rounds', cell: (row) => share(row.share) },
          {
            label: 'newest round', text: true,
            cell: (row) =>
              h('a',
                {
                  href: steer.address('client', { id: row.id, round: told.round }),
                  title: `Why it was chosen in round ${count(told.round)}, or why not`,
                },
                'why (not)?'),
          },
        ],
      })),
  ];
}

export default {
  name: 'overview', label: 'Overview', asks: () => ({ overview: {} }), view: (slots) => answer(slots.overview, view),
};
