// Formats numbers, times and ids as text with units; unknown values become a dash.

export const UNKNOWN = '–';
const THIN = '\u202f';
const known = (value) => typeof value === 'number' && Number.isFinite(value);
const fixed = (value, digits) =>
  value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace(/^-/, '−');
export const digitsFor = (value) => (Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0);

export const count = (value) => (known(value) ? fixed(value, 0) : UNKNOWN);
export const number = (value) => known(value) ? fixed(value, Number.isInteger(value) ? 0 : digitsFor(value)) : UNKNOWN;
export const ratio = (value) => (known(value) ? fixed(value, 3) : UNKNOWN);
/** 15.0 %, 100 %, 0.005 %: enough digits that a positive share is never shown as zero. */
const shareDigits = (value) =>
  value === 0 || value >= 0.001 ? (value < 0.9995 ? 1 : 0) : Math.min(9, 1 - Math.floor(Math.log10(value * 100)));
export const share = (value) => known(value) ? `${fixed(value * 100, shareDigits(value))}${THIN}%` : UNKNOWN;
export const percent = (value) => (known(value) ? `${fixed(value * 100, 0)}${THIN}%` : UNKNOWN);
export const turns = (value) => (known(value) ? `${number(value)} ${value === 1 ? 'turn' : 'turns'}` : UNKNOWN);
/** 1.20 turns behind, 3 turns ahead */
export const behind = (value) => known(value) ? `${turns(Math.abs(value))} ${value < 0 ? 'ahead' : 'behind'}` : UNKNOWN;

/** The divisor and the unit of a time. */
const unitOf = (value) => [[86400 * 2, 86400, 'd'], [7200, 3600, 'h'], [600, 60, 'min'], [0, 1, 's']]
  .filter(([from]) => Math.abs(value) >= from)
  .map(([, by, name]) => [by, name])[0];

/** 8.42 s, 128 s, 12.4 min, 3.2 h, 2.5 d */
export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  const [size, unit] = unitOf(value);
  return `${fixed(value / size, digitsFor(value / size))}${THIN}${unit}`;
}

/** Formats the numbers of a column with the same decimals; times also in the same unit, that of the largest. */
export function columnFormat(all, isTime = false) {
  const values = all.filter(known);
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const [size, unit] = isTime ? unitOf(largest) : [1, ''];
  const digits = !isTime && values.every(Number.isInteger) ? 0 : largest / size < 1000 ? 2 : 1;
  return (value) => (known(value) ? `${fixed(value / size, digits)}${unit && THIN}${unit}` : UNKNOWN);
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log(Math.max(1, value)) / Math.log(1000))));
  return `${fixed(value / 1000 ** power, power ? 1 : 0)}${THIN}${['bytes', 'kB', 'MB', 'GB', 'TB'][power]}`;
}

/** What the source counts: rounds, or decisions if it has slots instead of rounds; set by main.js. */
export const words = { round: 'round', rounds: 'rounds', Round: 'Round', Rounds: 'Rounds' };
export function setWords({ unit }) {
  const upper = unit[0].toUpperCase() + unit.slice(1);
  Object.assign(words, { round: unit, rounds: `${unit}s`, Round: upper, Rounds: `${upper}s` });
}

/** 400 of 500 rounds, finished */
export const progress = ({ rounds, planned, finished, reading }) =>
  `${count(rounds)}${planned ? ` of ${count(planned)}` : ''} ${words.rounds}` +
  (reading ? ' read' : finished ? ', finished' : '');

/** “round 5” or “rounds 5 to 8”. */
export const span = (first, width) => width === 1
  ? `${words.round} ${count(first)}` : `${words.rounds} ${count(first)} to ${count(first + width - 1)}`;

/** 2.41/s, 3.2/min: how often something happens */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  const [by, unit] = value >= 0.1 || value === 0 ? [1, 's'] : value * 60 >= 0.1 ? [60, 'min'] : [3600, 'h'];
  return `${number(value * by)}${THIN}per${THIN}${unit}`;
}

/** A time stamp in the time zone of the browser. */
export function timestamp(value) {
  if (value == null) return UNKNOWN;
  const date = new Date(known(value) ? value * 1000 : value);
  return Number.isNaN(date.getTime())
    ? String(value)
    : date.toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });
}

/** 1 client, 2 clients */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;

/**
 * A mean with the half-width of its confidence interval, both divided by `by` and shown with the same digits. An
 * interval that would leave `limits`, the possible values, is given by its ends.
 */
export function plusMinus(value, by = 1, digits = null, [least, most] = [-Infinity, Infinity]) {
  if (!known(value?.mean)) return UNKNOWN;
  const decimals = digits ?? digitsFor(value.mean / by);
  const shown = (number) => Number((number / by).toFixed(decimals));
  if (known(value.half) &&
    (shown(value.mean - value.half) < shown(least) || shown(value.mean + value.half) > shown(most))) {
    const [low, high] = [Math.max(least, value.mean - value.half), Math.min(most, value.mean + value.half)];
    return `${fixed(value.mean / by, decimals)} (${fixed(low / by, decimals)} to ${fixed(high / by, decimals)})`;
  }
  return fixed(value.mean / by, decimals) + (known(value.half) ? ` ± ${fixed(value.half / by, decimals)}` : '');
}

// Characters that break lines or change the direction of the surrounding text.
const CONTROL_CHARACTERS = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text without control characters, at most `limit` characters long. */
export function short(text, limit = 24) {
  const characters = [...String(text).replace(CONTROL_CHARACTERS, ' ')];
  return characters.length > limit
    ? `${characters.slice(0, limit - 1).join('')}…`
    : characters.join('').trim() ? characters.join('') : '(blank)';
}

/** Shortens and escapes text for Plotly, which interprets tags and entities. */
export const plain = (text, limit = 24) =>
  short(text, limit).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

export const FLAGS = {
  context: 'The context that the client reports predicts its times worse than its own typical time does.',
  changed: 'The times of the client have departed from its predictions recently.',
  backing_off: 'The client missed several turns in a row and is not selected for some time.',
  retired: 'The client has retired: it accrues and takes no more turns.',
  rarely_available: 'The client was available less often than its guarantee needs.',
  too_few_rounds: 'The client was not there for long enough to be promised a whole turn, and had none.',
};
export const flagLabel = (name) => name.replaceAll('_', ' ').replace('rounds', words.rounds);

export const OUTCOMES = {
  arrived: 'returned in time', late: 'did not return in time',
  failed: 'reported a failure or did not return', redundant: 'returned after enough other clients had',
  cut_off: 'had not returned when enough other clients had', out: 'has not returned yet',
};
