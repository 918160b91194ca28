// Charts: a thin layer over Plotly, which is loaded after the page shows its first numbers.
import { h } from './dom.js';
import { saveCsv, savePng } from './downloads.js';
import { plain, words } from './format.js';
import { isNoisy, smoothed, windowOf } from './lines.js';
import { colours } from './palette.js';
import { navigation } from './parts.js';

const drawn = new Set();
let clock = null;
let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const script = h('script', { src: 'static/plotly.min.js' });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      library = null;
      reject(new Error('not loaded'));
    };
    document.head.append(script);
  });
  return library;
}

/**
 * A figure with a title, a chart and a caption. `from` is the data: a chart is redrawn only if its data, the theme
 * or its `state` change. `traces` and `layout` are functions of the colours; `click` is called with the customdata of a
 * point, `named` with the name of a line whose name was clicked.
 */
export function chart({
  id, from, state, title, caption, label, height = 280, wide, above, traces, layout, click, named,
}) {
  const spec = { id, from, state, height, traces, layout, click, named };
  const plot = (event) => event.target.closest('figure').querySelector('[data-chart]');
  const tool = (text, about, act) =>
    h('button', { type: 'button', class: 'tool', 'aria-label': `${about}: ${title}`, title: about, onclick: act }, text);
  return h('figure', { class: wide ? 'card chart wide' : 'card chart' },
    h('div', { class: 'head' }, h('h2', null, title),
      h('span', { class: 'tools' },
        tool('PNG', 'Save as a picture', (event) => savePng(plot(event), title)),
        tool('CSV', 'Save the numbers', (event) => saveCsv(plot(event))))),
    above,
    h('div', {
      class: `plot ${height > 280 ? 'tall' : ''}`, 'data-chart': id, role: 'img',
      'aria-label': label ?? `${title} ${caption}`, spec,
    }, h('p', { class: 'skeleton', role: 'status' }, 'The chart is being loaded …')),
    h('figcaption', null, caption));
}

/** Sets when rounds began, if charts show the time of the day instead of the numbers of rounds; else null. */
export function setClock(next) { clock = next; }

/** When a round began, in local time; times between the known rounds are interpolated. */
function timeOf(round) {
  const { rounds, at } = clock;
  const after = rounds.findIndex((known) => known >= round);
  const next = after < 0 ? rounds.length - 1 : after;
  const last = Math.max(0, next - 1);
  const part = Math.min(1, Math.max(0, (round - rounds[last]) / Math.max(1, rounds[next] - rounds[last])));
  return localTime(at[last] + part * (at[next] - at[last]));
}
const localTime = (ms) => new Date(ms - 60_000 * new Date(ms).getTimezoneOffset()).toISOString().slice(0, 23);

/** Changes the axis of a chart of rounds, and its traces, to the time of the day. */
function showClock(traces, layout) {
  for (const trace of traces) {
    if (clock.rounds.length) trace.x = Array.from(trace.x, timeOf);
    trace.hovertemplate = trace.hovertemplate?.replace(/(up to )?\S+ %\{x:,d\}/, '%{x|%e %b %Y, %H:%M:%S}');
  }
  const range = clock.since && [Date.now() - 1000 * clock.since, Date.now()].map(localTime);
  layout.xaxis = {
    ...layout.xaxis, type: 'date', title: 'time of the day', tickformat: undefined,
    hoverformat: '%e %b %Y, %H:%M:%S', ...(range ? { range, autorange: false } : { autorange: true }),
  };
}

const axis = (c, options = {}) => ({
  gridcolor: c.line, linecolor: c.line, tickcolor: c.line, zeroline: false, automargin: true, ticks: 'outside',
  ticklen: 4, hoverformat: '.4~g', fixedrange: matchMedia('(pointer: coarse)').matches,
  ...options,
  title: { text: options.title ?? '', standoff: 8, font: { color: c.muted } },
});

function fullLayout(spec, c, width, traces) {
  const layout = spec.layout?.(c, width) ?? {};
  const isTimed = clock && layout.xaxis?.isRounds;
  const zoom = isTimed ? {} : zoomOf(spec.id);
  if (isTimed) showClock(traces, layout);
  const hover = { bgcolor: c.paper, bordercolor: c.muted, font: { color: c.ink }, align: 'left' };
  return {
    height: spec.height, margin: { l: 52, r: 14, t: 18, b: 44 }, paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)', colorway: c.series, hovermode: 'closest', dragmode: 'zoom', barmode: 'overlay',
    bargap: 0.04,
    font: {
      family: 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif', size: 12, color: c.ink,
    },
    hoverlabel: hover, uirevision: spec.id,
    legend: { orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom', traceorder: 'normal', itemclick: 'toggle' },
    ...layout,
    xaxis: { ...axis(c, layout.xaxis), ...zoom.x }, yaxis: { ...axis(c, layout.yaxis), ...zoom.y },
  };
}

/** The ranges of a chart that the address contains, as `id~x0~x1~y0~y1`; one chart at a time is zoomed in. */
function zoomOf(id) {
  const [zoomed, ...ends] = (navigation.settings().zoom ?? '').split('~');
  const [x0, x1, y0, y1] = ends.map(Number);
  if (zoomed !== id || ends.length !== 4 || !ends.every((end) => Number.isFinite(Number(end)))) return {};
  return { x: { range: [x0, x1], autorange: false }, y: { range: [y0, y1], autorange: false } };
}

/** Keeps the ranges of a zoomed chart in the address. */
function keepZoom(element, change) {
  if (clock) return; // the address keeps numbers only
  const isReset = 'xaxis.autorange' in change || 'yaxis.autorange' in change;
  if (!isReset && !('xaxis.range[0]' in change || 'yaxis.range[0]' in change)) return;
  const ends = [...element.layout.xaxis.range, ...element.layout.yaxis.range].map((end) => Number(end).toPrecision(5));
  const zoom = isReset ? null : [element.spec.id, ...ends.map(Number)].join('~');
  if (isReset && !(navigation.settings().zoom ?? '').startsWith(`${element.spec.id}~`)) return;
  navigation.update({ zoom }, { replace: true });
}

function emptyLayout(spec, c) {
  const message = { text: clock?.since ? 'No round began in this time.' : 'No data yet.', xref: 'paper', yref: 'paper', x: 0.5, y: 0.5, showarrow: false };
  const hidden = { visible: false };
  return { ...fullLayout({ ...spec, layout: null }, c), xaxis: hidden, yaxis: hidden, annotations: [message] };
}

async function draw(element) {
  const { spec } = element;
  const c = colours();
  const theme = `${document.documentElement.dataset.theme} ${element.clientWidth} ${spec.state ?? ''} ${c.accent} ${clock?.at} ${clock?.since}`;
  if (element.shown === spec.from && element.theme === theme && element.shownId === spec.id) return;
  Object.assign(element, { shown: spec.from, theme, shownId: spec.id });
  if (!drawn.has(element)) element.replaceChildren();
  const traces = spec.traces(c, element.clientWidth);
  const hasData = traces.some((trace) => trace.x?.length);
  const layout = hasData ? fullLayout(spec, c, element.clientWidth, traces) : emptyLayout(spec, c);
  await window.Plotly.react(element, traces, layout, {
    displaylogo: false, displayModeBar: false, responsive: true, showTips: false,
  });
  if (!drawn.has(element)) {
    drawn.add(element);
    element.on('plotly_click', ({ points }) => {
      const data = points[0]?.customdata;
      if (data != null) element.spec.click?.(data, points[0]);
    });
    element.on('plotly_relayout', (change) => keepZoom(element, change));
    element.on('plotly_clickannotation', ({ annotation }) => {
      if (annotation.name) element.spec.named?.(annotation.name);
    });
  }
}

const pause = () => new Promise((resolve) => void setTimeout(resolve));
let drawing = null;
let isOutdated = false;

/** Draws every chart of the page that is not up to date, one at a time so that the page stays responsive. */
export function drawAll(root) {
  for (const element of root.querySelectorAll('[data-chart]')) element.style.height = `${element.spec.height}px`;
  isOutdated = true;
  drawing ??= drawOutdated(root).finally(() => {
    drawing = null;
  });
}

async function drawOutdated(root) {
  while (isOutdated) {
    isOutdated = false;
    for (const element of [...drawn])
      if (!element.isConnected) {
        window.Plotly.purge(element);
        drawn.delete(element);
      }
    for (const element of root.querySelectorAll('[data-chart]')) {
      await pause();
      if (!element.isConnected) continue;
      try {
        await load();
        await draw(element);
      } catch (error) {
        if (window.Plotly) console.error(error);
        else
          element.replaceChildren(
            h('p', { class: 'muted' },
              'The charts could not be loaded. All numbers of the page are complete without them.'),
            h('button', { type: 'button', onclick: () => drawAll(root) }, 'Try again'));
      }
    }
  }
}

// ---- building blocks of charts

const modeFor = (x) => (x.length > 60 ? 'lines' : 'lines+markers');

export const line = (x, y, name, color, { line: style, ...more } = {}) => ({
  type: 'scatter', mode: modeFor(x), x, y, name: plain(name, 36), line: { color, width: 2, ...style },
  marker: { color, size: 4 },
  ...more,
});

/** A sentence for captions of charts with such lines. */
export const SMOOTHED = ' A thick line over a faint one is its moving average.';

/** A line; a noisy one is faint, with a moving average over it. */
export function withAverage(x, y, name, color, more = {}) {
  if (!isNoisy(y)) return [line(x, y, name, color, more)];
  return [
    line(x, y, name, color, { ...more, mode: 'lines', opacity: 0.45, line: { ...more.line, width: 1 } }),
    line(x, smoothed(y), `smoothed: mean of ${windowOf(y)} points`, color, {
      mode: 'lines', line: { ...more.line, width: 2.6 }, hovertemplate: 'smoothed: %{y:.4~g}<extra></extra>',
    }),
  ];
}

/** The area between two curves. */
export function band(x, low, high, color, more = {}) {
  const edge = {
    type: 'scatter', mode: 'lines', x, line: { width: 0, color }, hoverinfo: 'skip', showlegend: false,
    connectgaps: true,
  };
  return [
    { ...edge, y: low, ...more },
    {
      ...edge,
      y: high, fill: 'tonexty', fillcolor: color,
      ...more,
      ...(more.name ? { name: plain(more.name), showlegend: true } : {}),
    },
  ];
}

/** Bars of a histogram; `format` formats the edges. */
export function bars({ edges, counts }, name, color, format) {
  const middle = counts.map((_, index) => (edges[index] + edges[index + 1]) / 2);
  const width = counts.map((_, index) => (edges[index + 1] - edges[index]) * 0.94);
  const text = counts.map((_, index) => `${format(edges[index])} to ${format(edges[index + 1])}`);
  return {
    type: 'bar', x: middle, y: counts, width, text, textposition: 'none', name, marker: { color },
    hovertemplate: '%{text}: %{y:,}<extra></extra>',
  };
}

/** A labelled straight line across the whole plot. */
export const rule = (c, along, value, label, { color = c.warn, right = false } = {}) => {
  const across =
    along === 'x'
      ? { x0: value, x1: value, y0: 0, y1: 1, yref: 'paper', xref: 'x' }
      : { y0: value, y1: value, x0: 0, x1: 1, xref: 'paper', yref: 'y' };
  const at =
    along === 'x'
      ? { x: value, y: 1, yref: 'paper', xref: 'x', xanchor: 'center', yanchor: 'bottom' }
      : { x: right ? 1 : 0, y: value, xref: 'paper', yref: 'y', xanchor: right ? 'right' : 'left', yanchor: 'bottom' };
  return {
    shapes: [{ type: 'line', ...across, line: { color, width: 1.5, dash: 'dash' } }],
    annotations: [
      { ...at, text: label, showarrow: false, font: { size: 11, color: c.ink }, bgcolor: c.paper, opacity: 0.9 },
    ],
  };
};

/** The y axis of a heat map with one row per client, the first row at the top. */
export function clientAxis(ids, width) {
  const every = Math.ceil(ids.length / 60);
  const at = ids.map((_, index) => index).filter((index) => index % every === 0);
  return {
    autorange: 'reversed', tickvals: at, ticktext: at.map((index) => plain(ids[index], width < 500 ? 9 : 18)),
    tickfont: { size: 10.5 }, showgrid: false, ticks: '',
  };
}
export const mapHeight = (ids) => Math.min(1000, Math.max(200, ids.length * 15 + 70));
/** The divisor and the unit for times up to `most` seconds. */
export const timeUnit = (most) => (most >= 7200 ? [3600, 'hours'] : most >= 600 ? [60, 'minutes'] : [1, 'seconds']);
/** An axis of rounds; charts with `isRounds` show the time of the day if the reader chose that. */
export const roundAxis = { isRounds: true, get title() { return words.round; }, tickformat: ',d', hoverformat: ',d' };
