// Rounds: details of one round, and the list of all rounds.
import { chart } from './charts.js';
import { h } from './dom.js';
import { box, clientLink, facts, muted, navigation, pager, renderSlot, roundLink, table } from './parts.js';
import { decisionColumns, outcomeBadge, staleness } from './slots.js';
import { count, plain, seconds, timestamp, turns, words } from './format.js';

function stepper(data) {
  const button = (text, number, disabled) =>
    h('button', { type: 'button', disabled, onclick: () => navigation.update({ number }) }, text);
  return h('div', { class: 'pager', role: 'group', 'aria-label': `Step through ${words.rounds}` },
    button('← Previous', data.number - 1, data.number <= data.first),
    button('Next →', data.number + 1, data.number >= data.last), button('Latest', null, false),
    muted(`${words.Rounds} ${count(data.first)} to ${count(data.last)}`));
}

function bars(data) {
  const { rows } = data;
  const y = rows.map((_, index) => index);
  const series = (c) => [
    ['optimistic', 'optimistic', c.available], ['predicted', 'predicted', c.muted], ['seconds', 'actual', c.accent],
  ];
  return chart({
    id: 'round-bars', from: data, wide: true, height: Math.max(240, rows.length * 46 + 90),
    title: 'Which client determined the duration?',
    caption:
      'For each client the time that the selection assumed (optimistic for clients with few turns), the predicted ' +
      'time and the actual time. The last client that the round waited for is marked.',
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
    click: (id) => navigation.open('client', { id, round: data.number }),
  });
}

function detail(data) {
  return [
    h('h2', { class: 'large' },
      `${words.Round} ${count(data.number)}`,
      data.is_open && (data.turn ? ', its turn is running' : ', still open')),
    stepper(data),
    h('p', { class: 'sentence' }, data.summary),
    data.turn ? facts([
      [data.is_open ? 'Under way for' : 'Duration', seconds(data.seconds)],
      ['Staleness', staleness(data.turn.staleness, data.turn.stale_in)],
      ['Idle clients', count(data.available_count)], ['Assumed time', seconds(data.threshold)],
      ['Objective', data.unit === 'seconds' ? seconds(data.objective) : turns(data.objective)],
      ['Given', timestamp(data.opened)], ['Ended', timestamp(data.closed)],
    ]) : facts([
      ['Duration', seconds(data.seconds)], ['Chosen', count(data.rows.length)],
      ['Target size', count(data.target_size)],
      ['Available', count(data.available_count)], ['Assumed slowest time', seconds(data.threshold)],
      ['Objective', data.unit === 'seconds' ? seconds(data.objective) : turns(data.objective)],
      ['Opened', timestamp(data.opened)],
      ['Closed', timestamp(data.closed)],
    ]),
    data.rows.length > 0 && data.rows.length <= 200 && !data.turn && bars(data),
    box(data.turn ? 'Chosen client' : 'Chosen clients',
      table({
        caption: `${data.turn ? 'Client' : 'Clients'} chosen in ${words.round} ${count(data.number)}`, rows: data.rows,
        none: 'No client was chosen in this round.',
        columns: [
          { label: 'client', text: true, cell: (row) => clientLink(row.id, { round: data.number }) },
          {
            label: 'outcome', text: true,
            cell: (row) => [
              outcomeBadge(row.outcome),
              row.bottleneck && !data.turn &&
                h('span', { class: 'flag', title: 'The round waited for this client' }, 'last'),
              row.why && ` ${row.why}`,
            ],
          },
          { label: 'actual', duration: (row) => row.seconds },
          { label: 'predicted', duration: (row) => row.predicted },
          { label: 'band', cell: (row) => (row.low == null ? '–' : `${seconds(row.low)} to ${seconds(row.high)}`) },
          { label: 'optimistic', duration: (row) => row.optimistic },
          ...(data.unit === 'seconds'
            ? [
                { label: 'usual time', duration: (row) => row.usual },
                { label: 'behind (turns)', numeric: (row) => row.behind },
                {
                  label: 'price of its turn', title: 'Urgent clients are chosen before all others, at no price',
                  cell: (row) => (row.price === 0 ? 'urgent' : seconds(row.price)),
                },
              ]
            : [{ label: `owed before the ${words.round} (turns)`, numeric: (row) => row.owed }]),
          { label: 'loss', numeric: (row) => row.loss },
          {
            label: 'selection', text: true,
            cell: (row) => h('a', { href: navigation.link('client', { id: row.id, round: data.number }) }, 'explain'),
          },
        ],
      })),
  ];
}

const list = (data, shown) =>
  box(`All ${words.rounds}`,
    table({
      caption: `${words.Rounds}, newest first`, rows: data.rows, current: (row) => row.round === shown,
      none: `No ${words.round} is recorded yet.`,
      columns: data.about.slots != null ? decisionColumns : [
        { label: 'round', cell: (row) => roundLink(row.round) },
        {
          label: 'duration', title: 'What the server waited for, failed and late clients included',
          duration: (row) => row.seconds,
        },
        { label: 'available', cell: (row) => count(row.available_count) },
        { label: 'chosen', cell: (row) => count(row.cohort) }, { label: 'returned', cell: (row) => count(row.back) },
        { label: 'late', cell: (row) => count(row.late) }, { label: 'failed', cell: (row) => count(row.failed) },
        { label: 'last client', text: true, cell: (row) => clientLink(row.bottleneck, { round: row.round }) },
        { label: 'assumed slowest', duration: (row) => row.threshold },
        data.rows.some((row) => row.unit === 'seconds')
          ? { label: 'objective', duration: (row) => row.objective }
          : { label: 'objective (turns)', numeric: (row) => row.objective },
      ],
    }),
    pager(data, words.rounds));

export default {
  name: 'rounds', label: 'Rounds',
  requests: ({ number, page = 1 }) => ({ round: { number }, rounds: { page, size: 20 } }),
  view: (slots) =>
    [renderSlot(slots.round, detail), renderSlot(slots.rounds, (data) => list(data, slots.round?.data?.number))],
  step(by, { round }, settings) {
    const data = round?.data;
    const next = Number(settings.number ?? data?.number) + by;
    if (data && next >= data.first && next <= data.last) navigation.update({ number: next });
  },
};
