// The colours of the theme, and one colour, line style and symbol for each group of runs, the same on all pages.

/** How many groups a chart shows at once. */
export const MAX_GROUPS = 12;
const DASHES = ['solid', 'dash', 'dot', 'dashdot', 'longdash'];
const SYMBOLS = ['circle', 'square', 'diamond', 'triangle-up', 'cross', 'x', 'star', 'hexagon'];
let order = new Map();
let current = null;

/** The name of the group of a run: runs that differ only in their seed, or are still in progress. */
export const groupOf = (run) => (run.finished ? run.name : `${run.name}, in progress`);

/** The ids of picked runs in the address. */
export const picksOf = ({ pick }) => new Set((pick ?? '').split(',').filter(Boolean).map(Number));

/** Numbers the groups of these runs by their first run, the picked ones first; `run` is the run of the page. */
export function setRuns(runs, picks, run) {
  const sorted = [...runs].sort((a, b) => a.id - b.id);
  const names = [...sorted.filter(({ id }) => picks.has(id)), ...sorted].map(groupOf);
  order = new Map([...new Set(names)].map((name, index) => [name, index]));
  const own = runs.find(({ id }) => id === run);
  current = own ? groupOf(own) : null;
}

/** The number of a group; one that is not listed has a number that depends on its name only. */
function positionOf(name) {
  const listed = order.get(name);
  return listed ?? [...name].reduce((sum, letter) => sum + letter.codePointAt(0), 0);
}

export function styleOf(name) {
  const position = positionOf(name);
  const lap = Math.floor(position / MAX_GROUPS);
  return {
    index: position % MAX_GROUPS, dash: DASHES[(position + lap) % DASHES.length],
    symbol: SYMBOLS[(position + lap) % SYMBOLS.length],
  };
}
export const colourOf = (series, name) => series[styleOf(name).index];

/** The colour of the run of the page; null for a fleet. */
const ownColour = (series) => (current == null ? null : colourOf(series, current));

/** `#rrggbb` as a transparent rgba() colour, which all versions of Plotly accept. */
export function transparent(colour, opacity = 0.15) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

/** The colours of the current theme, from the style sheet. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const series = Array.from({ length: MAX_GROUPS }, (_, index) => value(`c${index + 1}`));
  const own = ownColour(series);
  return {
    ink: value('ink'), muted: value('muted'), line: value('line'), paper: value('paper'),
    accent: own ?? value('accent'), band: own ? transparent(own, 0.18) : value('band'), ok: value('ok'),
    warn: value('warn'), bad: value('bad'), unavailable: value('unavailable'), resting: value('resting'),
    available: value('available'), chosen: value('chosen'), series,
  };
}
