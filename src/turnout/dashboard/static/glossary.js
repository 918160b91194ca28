// The glossary: a dialog with the words of the pages, and small (i) buttons that open it at one of them.
import { fill, h } from './dom.js';

const TERMS = {
  round: 'One step of federated training: clients are selected, train, and return their updates.',
  decision: 'The choice of one client for a free slot, in a server without rounds.',
  turn: 'One participation of a client in a round.',
  cohort: 'The clients that are selected for one round.',
  promise: 'A guaranteed share of the rounds for every client, and a tolerance.',
  tolerance: 'How many turns a client may be behind its promise.',
  status: 'Kept: every client is less than one turn behind. Behind: one turn or more, within the tolerance. ' +
    'Broken: beyond the tolerance.',
  shortfall: 'Promised turns minus turns of a client. The largest shortfall is that of the client that was furthest ' +
    'behind, at its worst moment.',
  owed: 'A queue of turns by which some policies select. It never falls below 0.',
  'smallest share': 'The turns of the client with the fewest, divided by the number of rounds.',
  'Jain’s index': 'A measure of evenness: 1 if all clients have had the same number of turns.',
  'mean round': 'The time until the last selected client of a round has returned, mean over all rounds.',
  '95th percentile': 'Of 100 rounds, 95 are at most this long.',
  updates: 'Updates that arrived per second, in a server without rounds.',
  staleness: 'The number of updates that arrived while a turn was running.',
  accuracy: 'The share of the test items that the model classifies correctly, at its last measurement.',
  '±': 'Half the width of the 95 % confidence interval of the mean over seeds.',
  group: 'Runs that differ only in their seed.',
  seed: 'The number that determines all random draws of a run.',
  'true times': 'The policy is given the expected time of every client. Nobody knows it of real clients, so such a ' +
    'policy is a bound and is never marked as best.',
  'Pareto front': 'The groups that no other group beats in both time and fairness.',
  smoothed: 'A moving average of the line; it hides changes that last only a few points.',
};
const at = (id) => document.getElementById(id);

export function showGlossary(term = null) {
  fill(at('glossary-list'),
    Object.entries(TERMS).map(([name, text]) =>
      h('div', { class: name === term ? 'current' : null, 'data-term': name }, h('dt', null, name),
        h('dd', null, text))));
  at('glossary').showModal();
  at('glossary-list').querySelector('.current')?.scrollIntoView({ block: 'center' });
}

/** A button that opens the glossary at a term. */
export function info(term) {
  if (!(term in TERMS)) throw new Error(`the glossary has no term ${term}`);
  return h('button',
    { type: 'button', class: 'info', 'aria-label': `What does “${term}” mean?`, onclick: () => showGlossary(term) },
    'i');
}
