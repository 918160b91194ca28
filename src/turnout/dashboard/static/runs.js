// The choice of a run: a button that says which one is shown, and a dialog that finds one among many.
import { fill, h } from './dom.js';
import { count, progress, short } from './words.js';

const at = (id) => document.getElementById(id);
const MOST = 60;

export function showRun(button, store, about) {
  button.hidden = store?.kind !== 'runs' || store.runs.length === 0;
  if (button.hidden) return;
  const run = store.runs.find((one) => one.id === about?.run);
  button.textContent =
    about?.run == null
      ? 'Choose a run ▾'
      : `Run ${about.run}: ${short(about.name, 30)}${run ? `, seed ${run.seed}` : ''} ▾`;
}

const described = (run) => `${run.id} ${run.name} ${run.policy} seed ${run.seed} ${run.world ?? ''}`.toLowerCase();

export function chooseRun(store, address) {
  const page = location.hash.replace(/^#\/?/, '').split('?')[0] || 'overview';
  const link = (id, ...words) => h('a', { href: address(page, { run: id }), onclick: () => at('runs').close() }, words);
  const list = (text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = store.runs.filter((run) => words.every((word) => described(run).includes(word)));
    const unlisted = /^\d+$/.test(text) && !store.runs.some((run) => run.id === Number(text));
    fill(at('runs-list'),
      h('ul', { class: 'runs' }, unlisted && h('li', null, link(text, `Run ${text}`)),
        found
          .slice(0, MOST)
          .map((run) =>
            h('li', null,
              link(run.id, h('b', null, `Run ${run.id}: ${short(run.name, 60)}`),
                h('span', { class: 'muted' },
                  ` seed ${run.seed}${run.world ? `, ${short(run.world, 30)}` : ''}, ${count(run.clients)} clients, `,
                  progress(run)))))),
      h('p', { class: 'muted' },
        `${count(Math.min(MOST, found.length))} of ${count(store.runs_total ?? store.runs.length)} runs, newest first.`,
        found.length > MOST && ' Type to find others.',
        store.runs_total > store.runs.length &&
          ` Only the newest ${count(store.runs.length)} are found by name; type the number of an older one.`));
  };
  at('runs-filter').value = '';
  at('runs-filter').oninput = (event) => list(event.target.value.trim());
  list('');
  at('runs').showModal();
}
