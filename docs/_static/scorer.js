// The order of search results: what is named like the query first, then headings, text, and names of the programming
// interface. Among equals, pages about concepts come first, and copies and references last.
const CONCEPTS = ["scheduling", "operating", "service", "fair-pace", "promise", "glossary"];
var Scorer = {  // searchtools.js declares it with var, too
  objNameMatch: 8, objPartialMatch: 2, objPrio: { 0: 2, 1: 0, 2: -5 }, objPrioDefault: 0,
  title: 40, partialTitle: 20, term: 12, partialTerm: 4,
  score: ([page, title, , , score]) => {
    const query = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().trim();
    const [name, ...above] = title.toLowerCase().split(" > ").reverse();
    const isNamed = query && name.replace(/^(an?|the) /, "").startsWith(query);
    const isClass = query && /\.[A-Z]\w*$/.test(title) && title.toLowerCase().endsWith(`.${query}`);
    const further = /^(project|reference)\//.test(page) ? -30 : 1 + CONCEPTS.indexOf(page);
    return score + further + (isNamed ? (above.length ? 30 : 60) : isClass ? 50 : 0);
  },
};
