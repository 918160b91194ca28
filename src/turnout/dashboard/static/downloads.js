// Downloads of a chart: its picture as PNG, and the numbers that it shows as CSV.
import { colours } from './palette.js';

function save(name, blob) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const quoted = (value) => {
  const text = value == null ? '' : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const decoded = (text) =>
  String(text ?? '').replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&amp;', '&');

/** One row for each point of each trace: the name of the trace, x, y and, on a heat map, its value. */
function toCsv(traces) {
  const rows = [['series', 'x', 'y', 'value']];
  for (const trace of traces) {
    const name = decoded(trace.name);
    if (trace.z)
      trace.z.forEach((line, row) =>
        line.forEach((value, column) =>
          rows.push([name, trace.x?.[column] ?? column, trace.y?.[row] ?? row, value])));
    else (trace.x ?? []).forEach((x, index) => rows.push([name, x, trace.y?.[index], trace.text?.[index] ?? '']));
  }
  return rows.map((row) => `${row.map(quoted).join(',')}\n`).join('');
}

export const saveCsv = (element) =>
  save(`${element.spec.id}.csv`, new Blob([toCsv(element.data ?? [])], { type: 'text/csv' }));

export async function savePng(element, title) {
  const layout = {
    ...element.layout, paper_bgcolor: colours().paper, margin: { ...element.layout.margin, t: 60 },
    title: { text: title.replace(/[<>&]/g, ' '), x: 0.02, y: 0.97, font: { size: 15 } },
  };
  const url = await window.Plotly.toImage(
    { data: element.data, layout },
    { format: 'png', width: element.clientWidth, height: element.clientHeight + 45, scale: 2 });
  const bytes = Uint8Array.from(atob(url.split(',')[1]), (letter) => letter.charCodeAt(0));
  save(`${element.spec.id}.png`, new Blob([bytes], { type: 'image/png' }));
}
