// The order of search results: pages and headings first, then text, then names of the programming interface.
const Scorer = {
  objNameMatch: 8, objPartialMatch: 2, objPrio: { 0: 2, 1: 0, 2: -5 }, objPrioDefault: 0,
  title: 40, partialTitle: 20, term: 12, partialTerm: 4,
};
