"""A self-contained HTML report: figures, claims with their verdicts, settings, and the command to repeat it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import turnout
from turnout.experiments.framework.claims import Claim
from turnout.experiments.framework.drawing import as_svg
from turnout.experiments.framework.reproduce import Result, verdict_counts

STYLE = """
:root { --ink: #1d2329; --soft: #5d6770; --line: #d9dee2; --paper: #ffffff; --wash: #f5f7f8;
  --good: #00664b; --bad: #a33d00; --open: #6b5900; color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 0 0 .3rem; }
.lead { color: var(--soft); margin: 0 0 1.6rem; max-width: 46rem; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.4rem 1.5rem; margin: 1.2rem 0; }
section > p { color: var(--soft); margin: 0 0 .8rem; max-width: 48rem; }
figure { margin: 0 0 1rem; }
figure svg { width: 100%; height: auto; max-width: 46rem; display: block; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th, td { text-align: left; padding: .45rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: var(--good); } .does-not-hold { color: var(--bad); } .not-decided { color: var(--open); }
small, footer { color: var(--soft); }
pre { background: var(--wash); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  overflow-x: auto; font-size: .88rem; }
footer { font-size: .88rem; margin-top: 2rem; }
"""


def render_report(
    results: Sequence[Result],
    *,
    title: str,
    lead: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    settings: Mapping[str, Any],
    command: str,
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
    """
    counts = verdict_counts(claim for result in results for claim in result.findings.claims)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(lead)}</p>',
        f"<section><h2>At a glance</h2>{_table(headings, rows)}</section>",
        *(_experiment(result) for result in results),
        f"<section><h2>Settings</h2>{_table(('setting', 'value'), [(k, str(v)) for k, v in settings.items()], ())}"
        f"<h2>Repeat this run</h2><pre>{escape(command)}</pre></section>",
        f"<footer>Claims: {escape(summary)}. Verdicts are computed from the seeds: a claim holds if the 95 % "
        "confidence intervals of all its comparisons support it, does not hold if one contradicts it, and is otherwise "
        f"not decided. turnout {escape(turnout.__version__)}.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _experiment(result: Result) -> str:
    experiment, findings = result.experiment, result.findings
    return (
        f'<section id="{escape(experiment.name)}"><h2>{escape(experiment.title)}</h2><p>{escape(experiment.about)}</p>'
        f'<figure role="img" aria-label="{escape(experiment.title)}">{_inline_svg(result)}</figure>'
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
        return "".join(f'<{tag} class="{classes[column]}">{escape(cell)}</{tag}>' for column, cell in enumerate(row))

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
