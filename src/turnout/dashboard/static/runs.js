// The selection of a run: a button with the current run, and a dialog to search the runs.
import { fill, h } from './dom.js';
import { swatch } from './list.js';
import { groupOf } from './palette.js';
import { count, plural, progress, short } from './format.js';

const at = (id) => document.getElementById(id);
const MAX_LISTED = 60;

export function showRun(button, store, about) {
  button.hidden = store?.kind !== 'runs' || store.runs.length === 0;
  if (button.hidden) return;
  const run = store.runs.find((candidate) => candidate.id === about?.run);
  fill(button,
    run && swatch(groupOf(run)),
    about?.run == null
      ? 'Choose a run ▾'
      : `Run ${about.run}: ${short(about.name, 30)}${run ? `, seed ${run.seed}` : ''} ▾`);
}

const searchText = (run) => `${run.id} ${run.name} ${run.policy} seed ${run.seed} ${run.world ?? ''}`.toLowerCase();

export function chooseRun(store, address) {
  const open = location.hash.replace(/^#\/?/, '').split('?')[0];
  const page = ['', 'runs', 'compare'].includes(open) ? 'overview' : open;
  const link = (id, ...label) => h('a', { href: address(page, { run: id }), onclick: () => at('runs').close() }, label);
  const list = (text) => {
    const terms = text.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = store.runs.filter((run) => terms.every((term) => searchText(run).includes(term)));
    const unlisted = /^\d+$/.test(text) && !store.runs.some((run) => run.id === Number(text));
    fill(at('runs-list'),
      h('ul', { class: 'runs' }, unlisted && h('li', null, link(text, `Run ${text}`)),
        matches
          .slice(0, MAX_LISTED)
          .map((run) =>
            h('li', null,
              link(run.id, swatch(groupOf(run)), h('b', null, `Run ${run.id}: ${short(run.name, 60)}`),
                h('span', { class: 'muted' },
                  ` seed ${run.seed}${run.world ? `, ${short(run.world, 30)}` : ''}, ${plural(run.clients, 'client')}, `,
                  progress(run)))))),
      h('p', { class: 'muted' },
        `${count(Math.min(MAX_LISTED, matches.length))} of ` +
          `${plural(store.runs_total ?? store.runs.length, 'run')}, newest first.`,
        matches.length > MAX_LISTED && ' Type to search for others.',
        store.runs_total > store.runs.length &&
          ` Only the newest ${count(store.runs.length)} runs can be searched; type the number of an older run.`));
  };
  at('runs-filter').value = '';
  at('runs-filter').oninput = (event) => list(event.target.value.trim());
  list('');
  at('runs').showModal();
}
