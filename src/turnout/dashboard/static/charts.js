// Charts: a thin cover around Plotly, which is loaded after the first numbers are on the page.
import { h } from './dom.js';
import { plain } from './words.js';

const drawn = new Set();
let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const script = h('script', { src: '/static/plotly.min.js' });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      library = null;
      reject(new Error('not loaded'));
    };
    document.head.append(script);
  });
  return library;
}

/** The colours of the theme that is on, from the style sheet. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const scale = ['s0', 's1', 's2', 's3', 's4'].map((name, place) => [place / 4, value(name)]);
  return {
    ink: value('ink'), muted: value('muted'), line: value('line'), paper: value('paper'), accent: value('accent'),
    band: value('band'), ok: value('ok'), warn: value('warn'), bad: value('bad'), away: value('away'),
    there: value('there'), chosen: value('chosen'), scale,
    series: [1, 2, 3, 4, 5, 6, 7].map((place) => value(`c${place}`)),
  };
}

/**
 * A figure: a title that says what to look for, the chart, and how to read it. `from` is the data: the same data in the
 * same theme are not drawn twice. `traces` and `layout` are made of the colours; `click` gets the point's customdata.
 */
export function chart({ id, from, title, read, label, height = 280, wide, above, traces, layout, click }) {
  const spec = { id, from, height, traces, layout, click };
  return h('figure', { class: wide ? 'card chart wide' : 'card chart' }, h('h2', null, title), above,
    h('div', {
      class: `plot ${height > 280 ? 'tall' : ''}`, 'data-chart': id, role: 'img',
      'aria-label': label ?? `${title} ${read}`, spec,
    }),
    h('figcaption', null, read));
}

const axis = (c, told = {}) => ({
  gridcolor: c.line, linecolor: c.line, tickcolor: c.line, zeroline: false, automargin: true, ticks: 'outside',
  ticklen: 4, hoverformat: '.4~g', fixedrange: matchMedia('(pointer: coarse)').matches,
  ...told,
  title: { text: told.title ?? '', standoff: 8, font: { color: c.muted } },
});

function finish(spec, c, width) {
  const told = spec.layout?.(c, width) ?? {};
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
    ...told,
    xaxis: axis(c, told.xaxis), yaxis: axis(c, told.yaxis),
  };
}

function nothing(spec, c) {
  const words = { text: 'Nothing to draw yet.', xref: 'paper', yref: 'paper', x: 0.5, y: 0.5, showarrow: false };
  const hidden = { visible: false };
  return { ...finish({ ...spec, layout: null }, c), xaxis: hidden, yaxis: hidden, annotations: [words] };
}

async function draw(place) {
  const { spec } = place;
  const c = colours();
  const theme = `${document.documentElement.dataset.theme} ${place.clientWidth}`;
  if (place.shown === spec.from && place.theme === theme && place.shownId === spec.id) return;
  Object.assign(place, { shown: spec.from, theme, shownId: spec.id });
  if (!drawn.has(place)) place.replaceChildren();
  const traces = spec.traces(c, place.clientWidth);
  const layout = traces.some((trace) => trace.x?.length) ? finish(spec, c, place.clientWidth) : nothing(spec, c);
  await window.Plotly.react(place, traces, layout, {
    displaylogo: false, displayModeBar: false, responsive: true, showTips: false,
  });
  if (!drawn.has(place)) {
    drawn.add(place);
    place.on('plotly_click', ({ points }) => {
      const data = points[0]?.customdata;
      if (data != null) place.spec.click?.(data, points[0]);
    });
  }
}

const pause = () => new Promise((resolve) => void setTimeout(resolve));
let drawing = null;
let wanted = false;

/** Draws every chart of the page that is not up to date, one at a time so that the page stays at hand. */
export function drawAll(root) {
  for (const place of root.querySelectorAll('[data-chart]')) place.style.height = `${place.spec.height}px`;
  wanted = true;
  drawing ??= drawWanted(root).finally(() => {
    drawing = null;
  });
}

async function drawWanted(root) {
  while (wanted) {
    wanted = false;
    for (const place of [...drawn])
      if (!place.isConnected) {
        window.Plotly.purge(place);
        drawn.delete(place);
      }
    for (const place of root.querySelectorAll('[data-chart]')) {
      await pause();
      if (!place.isConnected) continue;
      try {
        await load();
        await draw(place);
      } catch (error) {
        if (window.Plotly) console.error(error);
        else
          place.replaceChildren(
            h('p', { class: 'muted' }, 'The charts could not be loaded; the numbers are complete without them.'),
            h('button', { type: 'button', onclick: () => drawAll(root) }, 'Try again'));
      }
    }
  }
}

// ---- what charts are made of

const few = (x) => (x.length > 60 ? 'lines' : 'lines+markers');

export const line = (x, y, name, color, { line: style, ...more } = {}) => ({
  type: 'scatter', mode: few(x), x, y, name: plain(name, 36), line: { color, width: 2, ...style },
  marker: { color, size: 4 },
  ...more,
});

/** The room between two curves. */
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

/** Bars of a histogram from its edges. */
export function bars({ edges, counts }, name, color, write) {
  const middle = counts.map((_, place) => (edges[place] + edges[place + 1]) / 2);
  const width = counts.map((_, place) => (edges[place + 1] - edges[place]) * 0.94);
  const text = counts.map((_, place) => `${write(edges[place])} to ${write(edges[place + 1])}`);
  return {
    type: 'bar', x: middle, y: counts, width, text, textposition: 'none', name, marker: { color },
    hovertemplate: '%{text}: %{y:,}<extra></extra>',
  };
}

/** A straight line across the whole plot, with its name. */
export const rule = (c, along, value, words, { color = c.warn, right = false } = {}) => {
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
      { ...at, text: words, showarrow: false, font: { size: 11, color: c.ink }, bgcolor: c.paper, opacity: 0.9 },
    ],
  };
};

/** The y axis of a map with one row a client: rows counted from above, with their ids. */
export function clientAxis(ids, width) {
  const every = Math.ceil(ids.length / 60);
  const at = ids.map((_, place) => place).filter((place) => place % every === 0);
  return {
    autorange: 'reversed', tickvals: at, ticktext: at.map((place) => plain(ids[place], width < 500 ? 9 : 18)),
    tickfont: { size: 10.5 }, showgrid: false, ticks: '',
  };
}
export const mapHeight = (ids) => Math.min(1000, Math.max(200, ids.length * 15 + 70));
/** Seconds on an axis are read in minutes or hours once there are many. */
export const timeUnit = (most) => (most >= 7200 ? [3600, 'hours'] : most >= 600 ? [60, 'minutes'] : [1, 'seconds']);
/** With more curves than this a legend would hide the chart: names are shown where one points. */
export const MANY = 8;
export const roundAxis = { title: 'round', tickformat: ',d', hoverformat: ',d' };
