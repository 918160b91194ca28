"""A self-contained HTML report: a conclusion in words, figures, claims with their verdicts, and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import PromiseStatus
from turnout.lab.analysis.statistics import format_interval, mean_confidence_interval
from turnout.lab.drawing.style import as_svg
from turnout.lab.studies.framework.claims import Claim
from turnout.lab.studies.framework.experiment import Result, verdict_summary
from turnout.version import __version__


@dataclass(frozen=True, slots=True, eq=False)
class JudgedPolicy:
    """What a comparison found about a policy.

    Args:
        label: Its name.
        mean_rounds: The mean round time of each seed in seconds; all contenders have the same seeds.
        shortfall: How many turns the client that was furthest behind was behind, in any round of any seed.
        status: The status of the promise at that moment.
        true_times: Whether the policy is given the true times, which nobody knows of real clients.
    """

    label: str
    mean_rounds: FloatArray
    shortfall: float
    status: PromiseStatus
    true_times: bool = False

    @property
    def seconds(self) -> str:
        """The mean round with its confidence interval."""
        mean, band = mean_confidence_interval(self.mean_rounds)
        return format_interval(mean, band, 2, unit=" s", limits=(0.0, np.inf))

    @property
    def mean(self) -> float:
        """The mean round over all seeds, in seconds."""
        return float(self.mean_rounds.mean())


def conclude(contenders: Sequence[JudgedPolicy], *, tolerance: float, reference: str) -> list[str]:
    """Returns sentences: the policy to use, its reasons, and what speaks against each policy with shorter rounds.

    A policy can be recommended if it did not break the promise and is not given the true times.

    Args:
        contenders: The policies of the comparison.
        tolerance: How many turns a client may be behind.
        reference: The policy that time is compared with.
    """
    eligible = [contender for contender in contenders if contender.status != "broken" and not contender.true_times]
    if not eligible:
        playable = [contender for contender in contenders if not contender.true_times] or list(contenders)
        nearest = min(playable, key=lambda contender: contender.shortfall)
        return [
            f"No policy of this comparison kept every client within {tolerance:g} turns of its promise.",
            f"The nearest was {nearest.label}: a client was {nearest.shortfall:.2f} turns behind.",
        ]
    best, *rest = sorted(eligible, key=lambda contender: contender.mean)
    sentences = [_recommend(best, len(eligible), tolerance), *_compare(best, contenders, reference)]
    if rest and not _is_shorter(best, rest[0]):
        sentences.append(
            f"{rest[0].label} ({rest[0].seconds}) cannot be distinguished from it by these seeds: run more of them."
        )
    quicker = [contender for contender in contenders if contender.mean < best.mean]
    return [*sentences, *map(_objection, sorted(quicker, key=lambda contender: contender.mean))]


def _recommend(best: JudgedPolicy, eligible: int, tolerance: float) -> str:
    among = "the only policy" if eligible == 1 else f"the one with the shortest rounds of the {eligible} policies"
    return (
        f"Use {best.label}: it is {among} that left no client more than {tolerance:g} turns behind. Its mean round "
        f"takes {best.seconds}, and no client was ever more than {best.shortfall:.2f} turns behind."
    )


def _compare(best: JudgedPolicy, contenders: Sequence[JudgedPolicy], reference: str) -> list[str]:
    other = next((contender for contender in contenders if contender.label == reference), None)
    if other is None or other is best:
        return []
    saved = 1 - best.mean / other.mean
    if _is_shorter(best, other):
        return [f"It needs {saved:.0%} less time than {reference} ({other.seconds})."]
    return [f"Its rounds are not significantly shorter than those of {reference} ({other.seconds})."]


def _objection(contender: JudgedPolicy) -> str:
    reasons = []
    if contender.true_times:
        reasons.append("is given the true times, which nobody knows of real clients")
    if contender.status == "broken":
        reasons.append(f"left a client {contender.shortfall:.1f} turns behind")
    return f"{contender.label} has shorter rounds ({contender.seconds}), but {' and '.join(reasons)}."


def _is_shorter(one: JudgedPolicy, other: JudgedPolicy) -> bool:
    """Returns whether the 95 % confidence interval of the paired differences is below 0; never with a single seed."""
    mean, band = mean_confidence_interval(one.mean_rounds - other.mean_rounds)
    return bool(mean + band < 0)


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
