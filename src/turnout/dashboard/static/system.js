// System: the store, how it is read, how fast this server answers, and which versions are at work.
import { h } from './dom.js';
import { answer, box, charts, facts, table } from './parts.js';
import { bytes, count, milliseconds, moment, seconds } from './words.js';

function view({ store, reading, gaps, requests, versions, uptime, memory_bytes: memory }) {
  return [
    charts(
      box('Store',
        facts([
          ['Name', store.name], ['Kind', store.kind === 'runs' ? 'runs of simulations' : 'a live fleet'],
          ['Size', bytes(store.bytes)], ['Write-ahead log', bytes(store.log_bytes)],
          ['Written by', store.writer ?? 'nobody at the moment'], ['Last change', moment(store.changed)],
        ])),
      box('Reading',
        facts([
          ['Rounds read', count(reading.rounds)], ['Time for all of them', seconds(reading.seconds)],
          ['Newest change read in', milliseconds(reading.last_ms)],
        ])),
      gaps &&
        box('Between rounds',
          facts([
            ['A round is open for', `${seconds(gaps.round_median)} (median)`],
            ['From its close to the next choice', `${seconds(gaps.between_median)} (median)`],
          ])),
      box('This server',
        facts([
          ['Up for', seconds(uptime)], ['Memory', bytes(memory)],
          ...Object.entries(versions).map(([name, version]) => [name, String(version)]),
        ]),
        h('p', null, 'For machines: ', h('a', { href: '/metrics' }, '/metrics'), ', ',
          h('a', { href: '/healthz' }, '/healthz')))),
    box('Requests',
      table({
        caption: 'How fast this server answers', rows: requests, none: 'Nothing was asked yet.',
        columns: [
          { label: 'route', text: true, cell: (row) => row.route },
          { label: 'times asked', cell: (row) => count(row.count) },
          { label: 'median', cell: (row) => milliseconds(row.median_ms) },
          { label: '95th percentile', cell: (row) => milliseconds(row.p95_ms) },
        ],
      })),
  ];
}

export default {
  name: 'system', label: 'System', asks: () => ({ system: {} }), view: (slots) => answer(slots.system, view),
  without: true,
};
