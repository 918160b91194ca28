// Rounds: one round in detail, and the list of all of them.
import { chart } from './charts.js';
import { h } from './dom.js';
import { answer, badge, box, clientLink, facts, muted, pager, roundLink, steer, table } from './parts.js';
import { OUTCOMES, count, moment, number, plain, seconds, turns } from './words.js';

const KINDS = { arrived: 'ok', late: 'warn', failed: 'bad' };

function stepper(told) {
  const button = (words, number, off) =>
    h('button', { type: 'button', disabled: off, onclick: () => steer.go({ number }) }, words);
  return h('div', { class: 'pager', role: 'group', 'aria-label': 'Step through rounds' },
    button('← Previous', told.number - 1, told.number <= told.first),
    button('Next →', told.number + 1, told.number >= told.last), button('Newest', null, false),
    muted(`Rounds ${count(told.first)} to ${count(told.last)}`));
}

function bars(told) {
  const { rows } = told;
  const y = rows.map((_, place) => place);
  const series = (c) => [
    ['optimistic', 'optimistic', c.there], ['predicted', 'predicted', c.muted], ['seconds', 'taken', c.accent],
  ];
  return chart({
    id: 'round-bars', from: told, wide: true, height: Math.max(240, rows.length * 46 + 90),
    title: 'Who held the round up?',
    read: 'For each client the time the choice counted on (optimistic while it is little known), the predicted ' +
      'one, and the one it took. The last one that was waited for is marked.',
    traces: (c) =>
      series(c).map(([field, name, colour]) => ({
        type: 'bar', orientation: 'h', name, y, x: rows.map((row) => row[field]), customdata: rows.map((row) => row.id),
        text: rows.map((row) => plain(row.id)), textposition: 'none',
        hovertemplate: `%{text}, ${name}: %{x:.2f} s<extra></extra>`,
        marker: {
          color: rows.map((row) => (field === 'seconds' && row.bottleneck ? c.bad : colour)),
          line: { width: rows.map((row) => (field === 'seconds' && row.bottleneck ? 2 : 1)), color: c.ink },
        },
      })),
    layout: (c, width) => ({
      barmode: 'group', bargap: 0.25,
      legend: { orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom', traceorder: 'normal' },
      xaxis: { title: 'seconds', rangemode: 'tozero' },
      yaxis: {
        autorange: 'reversed', tickvals: y,
        ticktext: rows.map((row) => `${plain(row.id, width < 500 ? 10 : 20)}${row.bottleneck ? '<br>(last)' : ''}`),
        showgrid: false, ticks: '',
      },
    }),
    click: (id) => steer.to('client', { id, round: told.number }),
  });
}

function detail(told) {
  return [
    h('h2', { class: 'large' }, `Round ${count(told.number)}${told.is_open ? ', still open' : ''}`), stepper(told),
    h('p', { class: 'sentence' }, told.words),
    facts([
      ['Time', seconds(told.seconds)], ['Chosen', count(told.rows.length)], ['Wanted', count(told.wanted)],
      ['Were there', count(told.volunteers)], ['Slowest time counted on', seconds(told.threshold)],
      ['Objective', told.objective == null ? '–' : turns(told.objective)], ['Opened', moment(told.opened)],
      ['Closed', moment(told.closed)],
    ]),
    told.rows.length > 0 && told.rows.length <= 200 && bars(told),
    box('Those who were chosen',
      table({
        caption: `Clients chosen in round ${count(told.number)}`, rows: told.rows,
        none: 'Nobody was chosen in this round.',
        columns: [
          { label: 'client', text: true, cell: (row) => clientLink(row.id, { round: told.number }) },
          {
            label: 'outcome', text: true,
            cell: (row) => [
              h('span', { title: OUTCOMES[row.outcome] }, badge(KINDS[row.outcome] ?? 'none', row.outcome)),
              row.bottleneck && h('span', { class: 'flag', title: 'The round waited for it' }, 'last'),
              row.why && ` ${row.why}`,
            ],
          },
          { label: 'took', cell: (row) => seconds(row.seconds) },
          { label: 'predicted', cell: (row) => seconds(row.predicted) },
          { label: 'band', cell: (row) => (row.low == null ? '–' : `${seconds(row.low)} to ${seconds(row.high)}`) },
          { label: 'optimistic', cell: (row) => seconds(row.optimistic) },
          { label: 'owed before (turns)', cell: (row) => number(row.owed) },
          { label: 'loss', cell: (row) => number(row.loss) },
          {
            label: 'why?', text: true,
            cell: (row) => h('a', { href: steer.address('client', { id: row.id, round: told.number }) }, 'why?'),
          },
        ],
      })),
  ];
}

const list = (told, shown) =>
  box('All rounds',
    table({
      caption: 'Rounds, newest first', rows: told.rows, current: (row) => row.round === shown,
      none: 'No round is recorded yet.',
      columns: [
        { label: 'round', cell: (row) => roundLink(row.round) }, { label: 'time', cell: (row) => seconds(row.seconds) },
        { label: 'were there', cell: (row) => count(row.volunteers) },
        { label: 'chosen', cell: (row) => count(row.cohort) }, { label: 'back', cell: (row) => count(row.back) },
        { label: 'late', cell: (row) => count(row.late) }, { label: 'failed', cell: (row) => count(row.failed) },
        { label: 'last one back', text: true, cell: (row) => clientLink(row.bottleneck, { round: row.round }) },
        { label: 'slowest counted on', cell: (row) => seconds(row.threshold) },
        { label: 'objective (turns)', cell: (row) => number(row.objective) },
      ],
    }),
    pager(told, 'rounds'));

export default {
  name: 'rounds', label: 'Rounds',
  asks: ({ number: wanted, page = 1 }) => ({ round: { number: wanted }, rounds: { page, size: 20 } }),
  view: (slots) => [answer(slots.round, detail), answer(slots.rounds, (told) => list(told, slots.round?.data?.number))],
  step(by, { round }, settings) {
    const told = round?.data;
    const next = Number(settings.number ?? told?.number) + by;
    if (told && next >= told.first && next <= told.last) steer.go({ number: next });
  },
};
