// Numbers, times and ids in words: each with its unit, and a dash where something is not known.

export const UNKNOWN = '–';
const THIN = '\u202f';
const known = (value) => typeof value === 'number' && Number.isFinite(value);
const fixed = (value, digits) =>
  value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace(/^-/, '−');
const digitsFor = (value) => (Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0);

export const count = (value) => (known(value) ? fixed(value, 0) : UNKNOWN);
export const number = (value) => known(value) ? fixed(value, Number.isInteger(value) ? 0 : digitsFor(value)) : UNKNOWN;
export const index = (value) => (known(value) ? fixed(value, 3) : UNKNOWN);
/** 15.0 %, 100 %, and 0.005 % of a large fleet: a share that is there is never told as none. */
const shareDigits = (value) =>
  value === 0 || value >= 0.001 ? (value < 0.9995 ? 1 : 0) : Math.min(9, 1 - Math.floor(Math.log10(value * 100)));
export const share = (value) => known(value) ? `${fixed(value * 100, shareDigits(value))}${THIN}%` : UNKNOWN;
export const percent = (value) => (known(value) ? `${fixed(value * 100, 0)}${THIN}%` : UNKNOWN);
export const turns = (value) => (known(value) ? `${number(value)} ${value === 1 ? 'turn' : 'turns'}` : UNKNOWN);
export const milliseconds = (value) => (known(value) ? `${number(value)}${THIN}ms` : UNKNOWN);

/** 8.42 s, 128 s, 12.4 min, 3.2 h, 2.5 d */
export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  const [size, unit] = [[86400 * 2, 86400, 'd'], [7200, 3600, 'h'], [600, 60, 'min'], [0, 1, 's']]
    .filter(([from]) => Math.abs(value) >= from)
    .map(([, by, name]) => [by, name])[0];
  return `${fixed(value / size, digitsFor(value / size))}${THIN}${unit}`;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log(Math.max(1, value)) / Math.log(1000))));
  return `${fixed(value / 1000 ** power, power ? 1 : 0)}${THIN}${['bytes', 'kB', 'MB', 'GB', 'TB'][power]}`;
}

/** 400 of 500 rounds, finished */
export const progress = ({ rounds, planned, finished, reading }) =>
  `${count(rounds)}${planned ? ` of ${count(planned)}` : ''} rounds${reading ? ' read' : finished ? ', finished' : ''}`;

/** One round or several, by number. */
export const span = (first, width) =>
  width === 1 ? `round ${count(first)}` : `rounds ${count(first)} to ${count(first + width - 1)}`;

/** A moment, in the reader's own time zone. */
export function moment(value) {
  if (value == null) return UNKNOWN;
  const date = new Date(known(value) ? value * 1000 : value);
  return Number.isNaN(date.getTime())
    ? String(value)
    : date.toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });
}

/** A mean with its half width, both divided by `by` and written with as many digits. */
export function plusMinus(value, by = 1, digits = null) {
  if (!known(value?.mean)) return UNKNOWN;
  const places = digits ?? digitsFor(value.mean / by);
  return fixed(value.mean / by, places) + (known(value.half) ? ` ± ${fixed(value.half / by, places)}` : '');
}

// Characters that would break a line or turn the direction of what stands around them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text without control characters, at most `most` characters long. */
export function short(text, most = 24) {
  const letters = [...String(text).replace(UNSEEN, ' ')];
  return letters.length > most
    ? `${letters.slice(0, most - 1).join('')}…`
    : letters.join('').trim() ? letters.join('') : '(blank)';
}

/** The same for Plotly, which would read tags and entities in it. */
export const plain = (text, most = 24) =>
  short(text, most).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

export const FLAGS = {
  context: 'What it tells about itself predicts its times worse than its own mean does.',
  changed: 'Its times have moved away from what was predicted of it.',
  resting: 'It missed several turns in a row and rests for some rounds.',
  retired: 'It is gone for good: it earns and takes no more turns.',
  seldom: 'It was there in fewer rounds than it was promised turns.',
};

export const OUTCOMES = {
  arrived: 'came back in time', late: 'came back after the round was closed',
  failed: 'reported a failure, or never came back', surplus: 'came back, but enough others were there first',
  outrun: 'was still out when enough others had come back', out: 'is still out',
};
