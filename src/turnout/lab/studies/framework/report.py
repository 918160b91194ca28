"""A self-contained HTML report: figures, claims with their verdicts, settings, and the command to repeat it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from turnout.lab.drawing.style import as_svg
from turnout.lab.studies.framework.claims import Claim
from turnout.lab.studies.framework.reproduce import Result, verdict_counts
from turnout.version import __version__

STYLE = """
:root { --ink: #1d2329; --soft: #56606a; --line: #d9dee2; --paper: #ffffff; --wash: #f5f7f8; --mark: #eaf3ee;
  --good: #00664b; --bad: #a33d00; --open: #6b5900; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #a8b1b9; --line: #3a4148; --paper: #191919; --wash: #0f1012; --mark: #15261f;
    --good: #5fd3a8; --bad: #ff9a5c; --open: #e3cd5b; }
  figure svg { filter: invert(.9) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 0 0 .3rem; }
.lead { color: var(--soft); margin: 0 0 1.6rem; max-width: 46rem; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.4rem 1.5rem; margin: 1.2rem 0; }
section > p { color: var(--soft); margin: 0 0 .8rem; max-width: 48rem; }
section.conclusion { background: var(--mark); }
.conclusion > p { color: var(--ink); } .conclusion > p:first-of-type { font-size: 1.1rem; font-weight: 600; }
figure { margin: 0 0 1rem; overflow-x: auto; }
figure svg { width: 100%; height: auto; max-width: 46rem; display: block; }
.hint { display: none; color: var(--soft); font-size: .85rem; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th, td { text-align: left; padding: .45rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: break-word; }
th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: var(--good); } .does-not-hold { color: var(--bad); } .not-decided { color: var(--open); }
small, footer { color: var(--soft); }
pre { background: var(--wash); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  overflow-x: auto; font-size: .88rem; }
dt { font-weight: 600; } dd { margin: 0 0 .6rem; color: var(--soft); }
footer { font-size: .88rem; margin-top: 2rem; }
@media (max-width: 40rem) {
  main { padding: 1.2rem .6rem 2rem; }
  h1 { font-size: 1.45rem; }
  section { padding: 1rem .8rem; }
  figure svg { min-width: 36rem; }
  .hint { display: block; }
  thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  tr, td { display: block; width: auto; }
  tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  tr:last-child { border-bottom: 0; }
  td { border: 0; padding: .12rem 0; }
  td.n { display: flex; justify-content: space-between; gap: 1rem; }
  td:first-child { font-weight: 600; }
  td[data-label]:not(:first-child)::before { content: attr(data-label); color: var(--soft); font-weight: 400; }
  td[data-label]:not(.n):not(:first-child)::before { content: attr(data-label) ": "; }
}
"""
#: What the words of a report mean.
GLOSSARY: Mapping[str, str] = {
    "turn": "One participation of a client in a round.",
    "promise": "A guaranteed rate and a tolerance: a share of the rounds for every client, which is never further "
    "behind than the tolerance.",
    "shortfall": "Promised turns minus turns of a client, in turns.",
    "status": "Kept: every client is less than one turn behind. Behind: one turn or more, within the tolerance. "
    "Broken: beyond the tolerance.",
    "mean round": "The time until the last selected client of a round has finished, mean over all rounds.",
    "least share": "The turns of the client with the fewest, divided by the number of rounds.",
    "± and bands": "The 95 % confidence interval of the mean over seeds, by Student's t distribution.",
    "seed": "The number that determines all random draws of a run; every policy meets the same seeds.",
    "given the true times": "A policy that knows the expected time of every client; nobody knows it of real clients.",
}


def render_report(
    results: Sequence[Result],
    *,
    title: str,
    lead: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    settings: Mapping[str, Any],
    command: str,
    conclusion: Sequence[str] = (),
) -> str:
    """Returns the report as HTML without external resources.

    Args:
        results: The experiments with their findings.
        title: The heading of the page.
        lead: The paragraph below the heading.
        headings: The column headings of the summary table.
        rows: The rows of the summary table.
        settings: The settings of the runs.
        command: The command that repeats the experiments.
        conclusion: What follows from the results, in sentences; the first one is the most important.
    """
    counts = verdict_counts(claim for result in results for claim in result.findings.claims)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(lead)}</p>',
        _conclusion(conclusion),
        f"<section><h2>At a glance</h2>{_table(headings, rows)}</section>",
        *(_experiment(result) for result in results),
        f"<section><h2>Settings</h2>{_table(('setting', 'value'), [(k, str(v)) for k, v in settings.items()], ())}"
        f"<h2>Repeat this run</h2><pre>{escape(command)}</pre></section>",
        f'<section id="glossary"><h2>Glossary</h2><dl>{_glossary()}</dl></section>',
        f"<footer>Claims: {escape(summary)}. Verdicts are computed from the seeds: a claim holds if the 95 % "
        "confidence intervals of all its comparisons support it, does not hold if one contradicts it, and is otherwise "
        f"not decided. turnout {escape(__version__)}.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _conclusion(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f'<section class="conclusion" id="conclusion"><h2>Conclusion</h2>{paragraphs}</section>'


def _glossary() -> str:
    return "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in GLOSSARY.items())


def _experiment(result: Result) -> str:
    experiment, findings = result.experiment, result.findings
    return (
        f'<section id="{escape(experiment.name)}"><h2>{escape(experiment.title)}</h2><p>{escape(experiment.about)}</p>'
        f'<figure role="img" aria-label="{escape(experiment.title)}">{_inline_svg(result)}</figure>'
        '<p class="hint">Scroll the figure sideways to see all of it.</p>'
        f"{_claims(findings.claims)}</section>"
    )


def _claims(claims: Sequence[Claim]) -> str:
    rows = []
    for claim in claims:
        numbers = " · ".join(f"{escape(name)}: {escape(value)}" for name, value in claim.numbers.items())
        rows.append(
            f'<tr><td class="verdict {claim.verdict.replace(" ", "-")}">{escape(claim.verdict)}</td>'
            f"<td>{escape(claim.statement)}<br><small>{numbers}</small></td></tr>"
        )
    head = "<thead><tr><th>verdict</th><th>claim</th></tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] | None = None) -> str:
    right = range(1, len(headings)) if numeric is None else numeric
    classes = ["n" if column in right else "" for column in range(len(headings))]

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{classes[column]}"{label(tag, column)}>{escape(cell)}</{tag}>'
            for column, cell in enumerate(row)
        )

    def label(tag: str, column: int) -> str:
        """Returns the heading as an attribute, which a narrow screen shows beside the cell."""
        return f' data-label="{escape(headings[column])}"' if tag == "td" else ""

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", headings)}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _inline_svg(result: Result) -> str:
    """Returns the figure as inline SVG; its ids get a prefix, because ids must be unique in the page."""
    svg = as_svg(result.experiment.draw(result.findings))
    svg = svg[svg.index("<svg") :]
    prefix = f"{result.experiment.name}-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}", svg)
    return re.sub(r'<svg([^>]*?) width="[^"]*"', r"<svg\1", re.sub(r' height="[^"]*pt"', "", svg, count=1), count=1)
