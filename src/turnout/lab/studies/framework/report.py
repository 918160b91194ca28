"""A self-contained HTML report: figures, claims with their verdicts, settings, and the command to repeat it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from turnout.lab.drawing.style import as_svg
from turnout.lab.studies.framework.claims import Claim
from turnout.lab.studies.framework.reproduce import Result, verdict_summary
from turnout.version import __version__


def render_report(
    results: Sequence[Result],
    *,
    title: str,
    lead: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    settings: Mapping[str, Any],
    command: str,
    conclusion: Sequence[str],
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
    parts = {
        "title": escape(title),
        "lead": escape(lead),
        "conclusion": "".join(f"<p>{escape(sentence)}</p>" for sentence in conclusion),
        "overview": _table(headings, rows),
        "experiments": "\n".join(map(_experiment, results)),
        "settings": _table(("setting", "value"), [(name, str(value)) for name, value in settings.items()], ()),
        "command": escape(command),
        "claims": verdict_summary(results),
        "version": escape(__version__),
    }
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(parts)


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
