// Many lines in one chart: names at their ends, one highlighted line, and smoothed versions of noisy lines.
import { plain } from './format.js';

/** Narrower charts have a legend instead of names at the lines. */
const NAMED_WIDTH = 420;
const LETTER = 6.3; // pixels of a letter of a name
const LONGEST = 20; // letters
const SPACING = 15; // pixels between two names

/** Moves sorted values apart so that neighbours differ by at least `gap`, and stays above `least` if possible. */
export function spread(values, gap, least = -Infinity) {
  const places = [...values];
  for (let index = 1; index < places.length; index += 1)
    places[index] = Math.max(places[index], places[index - 1] + gap);
  const excess = places.length ? places.at(-1) - values.at(-1) : 0;
  const shift = Math.min(excess / 2, Math.max(0, places[0] - least));
  return places.map((place) => place - shift);
}

/**
 * The layout of names at the right ends of lines: margins and annotations. `lines` are {name, y, colour}, where `y` is
 * the value at the end; values are on a linear axis from `from` to `to` in a chart of `height` pixels.
 */
export function endNames(lines, { from, to, height, width, faint = () => false }) {
  if (width < NAMED_WIDTH || lines.length < 2) return { showlegend: lines.length > 1 };
  const sorted = lines.filter((line) => line.y != null).sort((a, b) => a.y - b.y);
  const gap = (SPACING * (to - from || 1)) / (height - 80);
  const places = spread(sorted.map((line) => line.y), gap, from);
  const longest = Math.max(...sorted.map((line) => Math.min(LONGEST, [...line.name].length)));
  return {
    showlegend: false, margin: { l: 52, r: 20 + LETTER * longest, t: 18, b: 44 },
    annotations: sorted.map((line, index) => ({
      x: 1, xref: 'paper', xanchor: 'left', xshift: 6, y: places[index], yref: 'y', yanchor: 'middle', showarrow: false,
      text: plain(line.name, LONGEST), font: { size: 11.5, color: line.colour }, opacity: faint(line.name) ? 0.45 : 1,
      captureevents: true, name: line.name,
    })),
  };
}

const MIN_POINTS = 24;
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Whether steps from point to point are large compared with the spread of all values. */
export function isNoisy(values) {
  const known = values.filter(Number.isFinite);
  if (known.length < MIN_POINTS) return false;
  const centre = mean(known);
  const deviation = Math.sqrt(mean(known.map((value) => (value - centre) ** 2)));
  const steps = mean(known.slice(1).map((value, index) => Math.abs(value - known[index])));
  return deviation > 0 && steps > 0.35 * deviation;
}

/** The number of points in the moving average of a line. */
export const windowOf = (values) => Math.max(5, 2 * Math.round(values.length / 30) + 1);

/** The centred moving average; at both ends over the points that there are. */
export function smoothed(values) {
  const reach = (windowOf(values) - 1) / 2;
  return values.map((_, index) => {
    const near = values.slice(Math.max(0, index - reach), index + reach + 1).filter(Number.isFinite);
    return near.length ? mean(near) : null;
  });
}
