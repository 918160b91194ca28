// The table of clients on Fairness and Client; the server sorts, searches and paginates it.
import { h } from './dom.js';
import { clientLink, debounce, flagLegend, flags, navigation, pager, roundLink, statusBadge, table } from './parts.js';
import { count, share, turns, words } from './format.js';

export const clientsRequest = ({ sort = 'behind', order = 'desc', page, search }) => ({
  sort, order, page: page ?? 1, size: 25, search,
});

const columns = ({ share_of: shareOf, promise, has_queue, backs_off }, rows) => [
  {
    key: 'id', label: 'client', text: true, title: 'Sorts by the order of joining', cell: (row) => clientLink(row.id),
  },
  ...(promise
    ? [
        {
          key: 'status', label: 'status', text: true,
          title: 'Kept: less than one turn behind. Behind: within the tolerance. Broken: beyond it',
          cell: (row) => statusBadge(row.status),
        },
        {
          key: 'behind', label: 'behind (turns)', title: 'Promised turns minus turns that count; negative: a surplus',
          numeric: (row) => row.behind,
        },
        {
          key: 'counted', label: 'turns',
          title: promise.counts === 'completed' ? 'Turns whose updates arrived in time' : 'Turns taken',
          numeric: (row) => row.counted,
        },
        { key: 'promised', label: 'promised', title: 'Promised turns', numeric: (row) => row.promised },
        has_queue && {
          key: 'owed', label: 'owed (turns)', title: 'The queue of owed turns, which never falls below 0',
          numeric: (row) => row.owed,
        },
      ]
    : []),
  { key: 'turns', label: 'times chosen', cell: (row) => count(row.turns), optional: Boolean(promise) },
  { key: 'share', label: 'share', title: `Share of ${shareOf}`, cell: (row) => share(row.share) },
  {
    key: 'forfeited', label: 'forfeited (turns)', title: 'Turns lost because the debt had reached its cap',
    numeric: (row) => row.forfeited, optional: true,
  },
  { key: 'offered', label: `${words.rounds} available`, cell: (row) => count(row.offered) },
  backs_off && {
    key: 'backed_off', label: `${words.rounds} backed off`,
    title: 'Not selected for a while, because it had missed turns in a row; it earns nothing then',
    cell: (row) => count(row.backed_off),
  },
  { key: 'mean_seconds', label: 'mean time', duration: (row) => row.mean_seconds },
  {
    key: 'reliability', label: 'reliability', title: 'Share of turns from which the client returned',
    cell: (row) => share(row.reliability),
  },
  { key: 'last_round', label: 'last turn', title: `The ${words.round} of its last turn`, cell: (row) => roundLink(row.last_round) },
  rows.some((row) => row.flags.length) && { label: 'flags', text: true, cell: (row) => flags(row.flags) },
].filter(Boolean);

export function clientsTable(data, search = '') {
  const by = (changes) => navigation.update(changes, { replace: true });
  const { promise } = data.about;
  const tolerance = promise?.tolerance == null ? '' : `; each may be ${turns(promise.tolerance)} behind`;
  return [
    h('label', { class: 'find' }, 'Find by id ',
      h('input', {
        type: 'search', value: search, placeholder: 'part of an id', autocomplete: 'off', spellcheck: 'false',
        maxlength: 500, oninput: debounce((text) => by({ search: text, page: null })),
      })),
    table({
      caption: search ? `Clients whose id contains “${search.slice(0, 40)}”` : `Clients${tolerance}`, columns: columns(data.about, data.rows),
      rows: data.rows, choosable: true,
      sorted: { sort: data.sort, order: data.order, by },
      none: search ? 'No client id contains this text.' : 'No client has joined yet.',
    }),
    pager(data, data.total === 1 ? 'client' : 'clients', by), flagLegend(data.rows),
  ];
}
