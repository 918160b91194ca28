// The table of clients: sorted, searched and cut into pages by the server, for Fairness and Client.
import { h } from './dom.js';
import { afterTyping, clientLink, flagLegend, flags, pager, roundLink, steer, table } from './parts.js';
import { count, number, seconds, share } from './words.js';

export const clientsWanted = ({ sort = 'owed', order = 'desc', page, search }) => ({
  sort, order, page: page ?? 1, size: 25, search,
});

const columns = [
  {
    key: 'id', label: 'client', text: true, title: 'Sorted by the order of joining', cell: (row) => clientLink(row.id),
  },
  { key: 'owed', label: 'owed (turns)', cell: (row) => number(row.owed) },
  { key: 'turns', label: 'turns', cell: (row) => count(row.turns) },
  { key: 'promised', label: 'promised (turns)', cell: (row) => number(row.promised) },
  { key: 'share', label: 'share of rounds', cell: (row) => share(row.share) },
  {
    key: 'forfeited', label: 'forfeited (turns)', title: 'Turns above the cap of what can be owed',
    cell: (row) => number(row.forfeited),
  },
  { key: 'volunteered', label: 'rounds there', cell: (row) => count(row.volunteered) },
  { key: 'mean_seconds', label: 'mean time', cell: (row) => seconds(row.mean_seconds) },
  {
    key: 'reliability', label: 'reliability', title: 'How often it came back when it was chosen',
    cell: (row) => share(row.reliability),
  },
  { key: 'last_round', label: 'last turn (round)', cell: (row) => roundLink(row.last_round) },
  { label: 'flags', text: true, cell: (row) => flags(row.flags) },
];

export function clientsTable(told, search = '') {
  const by = (changes) => steer.go(changes, { replace: true });
  return [
    h('label', { class: 'find' }, 'Find by id ',
      h('input', {
        type: 'search', value: search, placeholder: 'part of an id', autocomplete: 'off', spellcheck: 'false',
        maxlength: 500, oninput: afterTyping((text) => by({ search: text, page: null })),
      })),
    table({
      caption: search ? `Clients with “${search.slice(0, 40)}” in their id` : 'Clients', columns, rows: told.rows,
      sorted: { sort: told.sort, order: told.order, by },
      none: search ? 'No client has this in its id.' : 'No client has joined yet.',
    }),
    pager(told, told.total === 1 ? 'client' : 'clients', by), flagLegend(told.rows),
  ];
}
