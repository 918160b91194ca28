// The list of several fleets: the promise and the rounds of each, and what needs attention.
import { h } from './dom.js';
import { count, seconds, UNKNOWN } from './format.js';
import { neglect } from './overview.js';
import { badge, statusBadge } from './parts.js';

const EVERY = 5000; // milliseconds

function cells({ about, mean_round: mean, warnings, ...data }) {
  const urgent = [neglect(data), ...warnings.filter(({ level }) => level === 'error')].filter(Boolean);
  return [
    h('td', { class: 'text' }, about.certificate.status ? statusBadge(about.certificate.status) : UNKNOWN),
    h('td', null, count(about.rounds)), h('td', null, count(about.clients)), h('td', null, seconds(mean)),
    h('td', { class: 'text' }, urgent.map(({ text }) => h('p', null, badge('bad', 'Error'), ' ', text))),
  ];
}

/** Replaces all cells but the first, which links the dashboard of the fleet. */
function fill(row, ...next) {
  while (row.cells.length > 1) row.lastElementChild.remove();
  row.append(...next);
}

async function show(row) {
  try {
    const response = await fetch(`/fleets/${row.dataset.fleet}/api/overview`);
    const data = await response.json();
    if (!response.ok) throw new Error(data.detail);
    fill(row, ...cells(data));
  } catch (error) {
    fill(row, h('td', { class: 'text', colspan: 5 }, badge('bad', 'Error'), ` ${error.message}`));
  }
}

async function showAll() {
  for (const row of document.getElementById('fleets').rows) await show(row);
  setTimeout(showAll, EVERY);
}
showAll();
