// Runs: all runs of a store in one table with their settings and figures; runs are picked here for the other pages.
import { timeUnit } from './charts.js';
import { h } from './dom.js';
import { info } from './glossary.js';
import { STATUSES, box, debounce, empty, muted, navigation, renderSlot, statusBadge, table } from './parts.js';
import { MAX_GROUPS, groupOf, picksOf, styleOf } from './palette.js';
import { UNKNOWN, count, plural, ratio, share, short } from './format.js';

const MAX_SETTINGS = 8;
const MAX_ROWS = 200;
/** Field of the figures, label, term of the glossary, and the cell; times have one unit in the whole column. */
const FIGURES = [
  ['mean_round', 'mean round', 'mean round', null], ['shortfall', 'largest shortfall (turns)', 'shortfall', null],
  ['least_share', 'smallest share', 'smallest share', share], ['jain', 'Jain’s index', 'Jain’s index', ratio],
  ['accuracy', 'accuracy', 'accuracy', ratio],
  ['rate', 'updates per second', 'updates', null], ['staleness', 'mean staleness', 'staleness', null],
];

/** Columns that are shown if runs differ in them, and what all runs have in common otherwise. */
const COMMON = [
  {
    key: 'world', label: 'world', text: true, value: (run) => run.world, cell: (run) => short(run.world, 24),
    same: (run) => `world ${short(run.world, 24)}`,
  },
  {
    key: 'rounds', label: 'rounds', value: (run) => run.rounds, cell: (run) => count(run.rounds),
    same: (run) => plural(run.rounds, 'round'),
  },
  {
    key: 'clients', label: 'clients', value: (run) => run.clients, cell: (run) => count(run.clients),
    same: (run) => plural(run.clients, 'client'),
  },
  {
    key: 'finished', label: 'state', text: true, value: (run) => (run.finished ? 'finished' : 'in progress'),
    cell: (run) => (run.finished ? 'finished' : 'in progress'), same: (run) => (run.finished ? 'finished' : 'in progress'),
  },
];
const inCommon = (rows) =>
  COMMON.filter(({ value }) => new Set(rows.map(value)).size === 1).map(({ same }) => same(rows[0])).join(', ');

export const swatch = (name) => h('span', { class: `dot c${styleOf(name).index + 1}`, 'aria-hidden': 'true' });

const searchText = (run) =>
  [`run ${run.id}`, run.name, run.policy, `seed ${run.seed}`, run.world,
    ...Object.entries(run.settings).map(([name, value]) => `${name}=${value}`), run.finished ? 'finished' : 'in progress',
  ].join(' ').toLowerCase();

/** The settings that differ between these runs. */
function differing(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  return names.filter((name) => new Set(runs.map((run) => run.settings[name])).size > 1).slice(0, MAX_SETTINGS);
}

const compareValues = (a, b) =>
  typeof a === 'number' && typeof b === 'number' ? a - b
    : String(a).localeCompare(String(b), 'en', { numeric: true });

function sortRuns(runs, value, order) {
  const sign = order === 'asc' ? 1 : -1;
  const isMissing = (run) => value(run) == null || value(run) === '';
  return [...runs].sort((a, b) => isMissing(a) - isMissing(b) || sign * compareValues(value(a), value(b)) || b.id - a.id);
}

function columnsOf(rows, picks, pick, isFull) {
  const figures = FIGURES.filter(([field]) => rows.some((run) => run.figures?.[field] != null));
  const [by, unit] = timeUnit(Math.max(0, ...rows.map((run) => run.figures?.mean_round ?? 0)));
  const checkbox = (run) =>
    h('input', {
      type: 'checkbox', checked: picks.has(run.id), disabled: isFull(run), 'aria-label': `Pick run ${run.id}`,
      onchange: (event) => pick(run.id, event.target.checked),
    });
  return [
    {
      key: 'name', label: 'run', text: true, value: (run) => run.name,
      cell: (run) =>
        h('span', { class: 'run' }, checkbox(run), swatch(groupOf(run)),
          h('a', { href: navigation.link('overview', { run: run.id }), title: 'Open the pages of this run' },
            `${run.id}: ${short(run.name, 40)}`),
          run.true_times && h('span', { class: 'flag', title: 'The policy is given the true times' }, 'true times')),
    },
    { key: 'seed', label: 'seed', value: (run) => run.seed, cell: (run) => run.seed ?? '–' },
    ...figures.map(([field, label, term, format]) => ({
      key: field, label: field === 'mean_round' ? `${label} (${unit})` : label, info: info(term),
      value: (run) => run.figures?.[field],
      ...(format ? { cell: (run) => format(run.figures?.[field]) }
        : { numeric: (run) => (run.figures?.[field] ?? NaN) / (field === 'mean_round' ? by : 1) }),
    })),
    rows.some((run) => run.status) && {
      key: 'status', label: 'promise', text: true, info: info('status'),
      value: (run) => (run.status ? Object.keys(STATUSES).indexOf(run.status) : null),
      cell: (run) => (run.status ? statusBadge(run.status) : UNKNOWN),
    },
    ...differing(rows).map((name) => ({
      key: `set:${name}`, label: name.replaceAll('_', ' '), value: (run) => run.settings[name],
      cell: (run) => short(run.settings[name] ?? '–', 24),
    })),
    ...COMMON.filter(({ value }) => new Set(rows.map(value)).size > 1),
  ].filter(Boolean);
}

function view(data, settings) {
  if (!data.rows.length)
    return empty('No runs', data.about.run == null && data.total === 0
      ? 'This store has no run yet. This page updates itself when the first run is stored.'
      : 'A live fleet has only one run: the other pages show it.');
  const by = (changes) => navigation.update(changes, { replace: true });
  const picks = picksOf(settings);
  const groups = new Set(data.rows.filter((run) => picks.has(run.id)).map(groupOf));
  const isFull = (run) => !picks.has(run.id) && groups.size >= MAX_GROUPS && !groups.has(groupOf(run));
  const setPicks = (ids) => by({ pick: [...ids].sort((a, b) => a - b).join(',') || null });
  const pick = (id, isPicked) => setPicks(new Set(isPicked ? [...picks, id] : [...picks].filter((own) => own !== id)));
  const terms = (settings.find ?? '').toLowerCase().split(/\s+/).filter(Boolean);
  const found = data.rows.filter((run) => terms.every((term) => searchText(run).includes(term)));
  const columns = columnsOf(data.rows, picks, pick, isFull);
  const sort = columns.some(({ key }) => key === settings.sort) ? settings.sort : null;
  const order = settings.order === 'asc' ? 'asc' : 'desc';
  const rows = sort ? sortRuns(found, columns.find(({ key }) => key === sort).value, order) : found;
  const pickFound = () => {
    const chosen = new Set(picks);
    const names = new Set(groups);
    for (const run of rows) {
      names.add(groupOf(run));
      if (names.size > MAX_GROUPS) break;
      chosen.add(run.id);
    }
    setPicks(chosen);
  };
  return box(null,
    h('div', { class: 'find' },
      h('label', null, 'Filter ',
        h('input', {
          id: 'runs-find', type: 'search', value: settings.find ?? '', placeholder: 'policy, seed 3, rate=0.1',
          autocomplete: 'off', spellcheck: 'false', maxlength: 200, oninput: debounce((find) => by({ find })),
        })),
      h('button', { type: 'button', onclick: pickFound }, `Pick ${terms.length ? 'those found' : 'all'}`),
      h('button', { type: 'button', disabled: !picks.size, onclick: () => setPicks([]) }, 'Pick none'),
      h('a', { class: 'button', href: navigation.link('compare') },
        picks.size ? `Compare ${plural(picks.size, 'run')}` : 'Compare all')),
    table({
      caption: `${count(rows.length)} of ${plural(data.total, 'run')}` +
        (picks.size ? `, ${count(picks.size)} picked` : ''),
      rows: rows.slice(0, MAX_ROWS), columns, sorted: { sort, order, by }, current: (run) => run.id === data.about.run, choosable: true,
      none: 'No run matches the filter.',
    }),
    data.reference_rate != null &&
      muted(`All runs are judged by the same promise, ${share(data.reference_rate)} ${data.share_of}, at their worst moment.`),
    picks.size > 0 && muted('Compare and Training show only the picked runs.'),
    inCommon(data.rows) && muted(`All runs: ${inCommon(data.rows)}.`),
    data.pending > 0 && muted(`The figures of ${plural(data.pending, 'run')} are still being computed.`),
    rows.length > MAX_ROWS && muted(`The first ${count(MAX_ROWS)} are shown: filter to see others.`),
    data.total > data.rows.length && muted(`Only the newest ${plural(data.rows.length, 'run')} are listed.`),
    muted(`Runs of the same name that differ only in their seed form a group with one colour on all pages. At most ` +
      `${MAX_GROUPS} groups are picked at once.`));
}

export default {
  name: 'runs', label: 'Runs', requests: () => ({ runs: {} }), worksWithoutRounds: true, isAboutAll: true,
  view: (slots, settings) => renderSlot(slots.runs, (data) => view(data, settings)),
  /** Requests the figures of further runs while there are any. */
  isIncomplete: (slots) => slots.runs?.data?.pending > 0,
};
