"""The base class of experiments (plans to play, findings to compute, a figure to draw), their files and HTML report.

Drawing never plays a run, and playing never draws.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import PromiseStatus
from turnout.lab.analysis.statistics import format_interval, mean_confidence_interval
from turnout.lab.columns import RoundColumns, Table, as_csv, write_text
from turnout.lab.drawing.style import Figure, as_svg, save
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.studies.framework.claims import Claim, Group, Verdict
from turnout.version import __version__

Plans = Mapping[str, list[RunPlan]]
#: Policies with their settings, by label.
Contenders = Mapping[str, tuple[str, Mapping[str, Any]]]


def plans_for(contenders: Contenders, seeds: int, rounds: int, *, first_seed: int = 0, **options: Any) -> Plans:
    """Returns the plans of each contender, one per seed; `options` are further arguments of `RunPlan`."""
    return {
        label: [
            RunPlan(policy, rounds, seed, settings, label=label, **options)
            for seed in range(first_seed, first_seed + seeds)
        ]
        for label, (policy, settings) in contenders.items()
    }


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of an experiment: claims with their verdicts, and the data of its figure as named tables."""

    claims: list[Claim]
    tables: dict[str, Table]


class Runs:
    """The finished runs of an experiment, which are read from the store one at a time.

    Attributes:
        labels: The labels of the contenders.
    """

    def __init__(self, plans: Plans, store: RunStore) -> None:
        self._plans, self._store, self.labels = plans, store, list(plans)

    def plans_of(self, label: str) -> list[RunPlan]:
        """Returns the plans of a contender, one per seed."""
        return self._plans[label]

    def of(self, label: str) -> Iterator[RoundColumns]:
        """Yields the runs of a contender, one per seed."""
        for plan in self._plans[label]:
            run = self._store.find(plan.key)
            if run is None or not run.finished:
                raise SettingError(f"the run of {plan.name}, seed {plan.seed}, is not in the store: play it first")
            yield self._store.columns(run.id)

    def each(self, label: str, measure: Callable[[RoundColumns], float]) -> Group:
        """Returns one measurement per seed."""
        return Group(label, np.array([measure(columns) for columns in self.of(label)]))

    def curves(self, label: str, measure: Callable[[RoundColumns], FloatArray]) -> FloatArray:
        """Returns one curve per seed, as rows."""
        return np.stack([measure(columns) for columns in self.of(label)])


class Experiment(ABC):
    """A figure with its claims.

    `rounds` and `seeds` are the default numbers, `first_seed` is the first of the seeds; `keep` is that of the plans:
    long runs store only choices and times.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    contenders: ClassVar[Contenders]
    rounds: ClassVar[int] = 500
    seeds: ClassVar[int] = 20
    first_seed: ClassVar[int] = 0
    keep: ClassVar[Literal["all", "choices"]] = "all"

    def on(self, datasets: Sequence[str]) -> Experiment:
        """Returns the same experiment on other datasets; most experiments train no model and reject this."""
        raise SettingError(f"{self.name} trains no model: it cannot be played on {', '.join(datasets)}")

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns the plans of each contender, one per seed; `rounds` replaces the default number of rounds."""
        return plans_for(self.contenders, seeds, rounds or self.rounds, keep=self.keep)

    @abstractmethod
    def findings(self, runs: Runs) -> Findings:
        """Computes claims and tables from finished runs."""

    @abstractmethod
    def draw(self, findings: Findings) -> Figure:
        """Draws the figure from the tables."""


@dataclass(frozen=True, slots=True)
class Result:
    """An experiment and its findings."""

    experiment: Experiment
    findings: Findings


def plans_of(experiments: Iterable[Experiment], seeds: int | None = None, rounds: int | None = None) -> list[RunPlan]:
    """Returns the plans of all runs that these experiments need; a plan that several need is listed once.

    `seeds` and `rounds` replace the defaults of each experiment.
    """
    plans = {
        plan.key: plan
        for experiment in experiments
        for contender in experiment.plans(seeds or experiment.seeds, rounds).values()
        for plan in contender
    }
    return list(plans.values())


def compute_results(
    experiments: Sequence[Experiment], store: RunStore, *, seeds: int | None = None, rounds: int | None = None
) -> list[Result]:
    """Computes the findings of each experiment from a store that holds its runs.

    Args:
        experiments: The experiments.
        store: The store of the runs.
        seeds: The number of seeds, by default that of each experiment.
        rounds: The number of rounds, by default that of each experiment.
    """
    return [
        Result(experiment, experiment.findings(Runs(experiment.plans(seeds or experiment.seeds, rounds), store)))
        for experiment in experiments
    ]


def write_results(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes figures as SVG and PNG, their data as CSV and all claims as JSON; returns the paths."""
    written: list[Path] = []
    for result in results:
        for name, table in result.findings.tables.items():
            written.append(write_text(folder / f"{name}.csv", as_csv(table)))
        written.extend(save(result.experiment.draw(result.findings), folder, result.experiment.name))
    claims = claims_of(results)
    written.append(write_text(folder / "claims.json", json.dumps(claims, indent=2, ensure_ascii=False) + "\n"))
    return list(dict.fromkeys(written))


def claims_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns every claim as a dict, with the name of its experiment."""
    return [
        {"experiment": result.experiment.name, **asdict(claim)}
        for result in results
        for claim in result.findings.claims
    ]


def verdict_summary(results: Sequence[Result]) -> str:
    """Returns how many claims have each verdict, in words."""
    counts = Counter(claim.verdict for result in results for claim in result.findings.claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])


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
