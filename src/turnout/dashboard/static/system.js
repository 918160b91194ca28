// System: the store, the timing of rounds, and versions.
import { h } from './dom.js';
import { box, charts, facts, renderSlot } from './parts.js';
import { bytes, seconds, timestamp } from './format.js';

function view({ about, store, gaps, versions, uptime, memory_bytes: memory }) {
  return charts(
    box('Store',
      facts([
        ['Name', store.name], ['Kind', store.kind === 'runs' ? 'store of runs' : 'live fleet'],
        ['Size', bytes(store.bytes)], ['Write-ahead log', bytes(store.log_bytes)],
        ['Writing process', store.writer ?? 'none'], ['Last change', timestamp(store.changed)],
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
        h('a', { href: './healthz' }, '/healthz'))));
}

export default {
  name: 'system', label: 'System', requests: () => ({ system: {} }), view: (slots) => renderSlot(slots.system, view),
  worksWithoutRounds: true,
};
