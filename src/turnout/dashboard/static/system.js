// System: the store, reading and response times, and versions.
import { h } from './dom.js';
import { box, charts, facts, renderSlot, table } from './parts.js';
import { bytes, count, milliseconds, seconds, timestamp, words } from './format.js';

function view({ about, store, reading, gaps, requests, versions, uptime, memory_bytes: memory }) {
  return [
    charts(
      box('Store',
        facts([
          ['Name', store.name], ['Kind', store.kind === 'runs' ? 'store of runs' : 'live fleet'],
          ['Size', bytes(store.bytes)], ['Write-ahead log', bytes(store.log_bytes)],
          ['Writing process', store.writer ?? 'none'], ['Last change', timestamp(store.changed)],
        ])),
      box('Reading',
        facts([
          [`${words.Rounds} read`, count(reading.rounds)],
          [`Time to read all ${words.rounds}`, seconds(reading.seconds)],
          ['Time to read the last change', milliseconds(reading.last_ms)],
        ])),
      gaps &&
        box(about.slots == null ? 'Timing of rounds' : 'Timing of turns',
          facts([
            [about.slots == null ? 'Round open for' : 'Turn running for', `${seconds(gaps.round_median)} (median)`],
            ...(about.slots == null
              ? [['From closing to the next selection', `${seconds(gaps.between_median)} (median)`]] : []),
          ])),
      box('This server',
        facts([
          ['Uptime', seconds(uptime)], ['Memory', bytes(memory)],
          ...Object.entries(versions).map(([name, version]) => [name, String(version)]),
        ]),
        h('p', null, 'For monitoring: ', h('a', { href: './metrics' }, '/metrics'), ', ',
          h('a', { href: './healthz' }, '/healthz')))),
    box('Requests',
      table({
        caption: 'Response times of this server', rows: requests, none: 'No requests yet.',
        columns: [
          { label: 'route', text: true, cell: (row) => row.route },
          { label: 'requests', cell: (row) => count(row.count) },
          { label: 'median', cell: (row) => milliseconds(row.median_ms) },
          { label: '95th percentile', cell: (row) => milliseconds(row.p95_ms) },
        ],
      })),
  ];
}

export default {
  name: 'system', label: 'System', requests: () => ({ system: {} }), view: (slots) => renderSlot(slots.system, view),
  worksWithoutRounds: true,
};
