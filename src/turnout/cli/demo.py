"""`turnout demo`: RBCS-F against random on a small synthetic fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.options import JsonOption, SeedOption, print_json, progress_bar
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.errors import SettingError
from turnout.kernel.fairness import FairnessQueues
from turnout.policies import RBCSF, SelectionPolicy, UniformRandom
from turnout.policies.fleet import SmallFleet

PROMISE = 0.15
COHORT = 8


@dataclass(frozen=True, slots=True)
class Played:
    """What a policy made of the same rounds as the others."""

    policy: str
    durations: FloatArray
    turns: IntArray
    worst_debt: float
    certificate_holds: bool

    @property
    def mean_round(self) -> float:
        """Seconds."""
        return float(self.durations.mean())

    @property
    def least_share(self) -> float:
        """The share of rounds of the client that was chosen least."""
        return float(self.turns.min() / len(self.durations))


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    policy: str
    mean_round_seconds: float
    time_saved: float
    least_chosen_share: float
    promised_share: float
    worst_debt_turns: float
    certificate_holds: bool


def demo(
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds to play.")] = 300,
    seed: SeedOption = 0,
    json: JsonOption = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw it into this file (.svg or .png).")] = None,
) -> None:
    """Play RBCS-F against random on forty synthetic clients and show what each gives."""
    contenders: dict[str, SelectionPolicy] = {"random": UniformRandom(40, cohort_size=COHORT, seed=seed)}
    for weight in (1.0, 5.0, 20.0):
        contenders[f"RBCS-F, weight {weight:g}"] = RBCSF(
            40, cohort_size=COHORT, guaranteed_rate=PROMISE, speed_weight=weight, availability=0.8
        )
    with progress_bar() as progress:
        task = progress.add_task("Playing", total=rounds * len(contenders))
        played = [
            _play(name, policy, rounds, seed, lambda: progress.advance(task)) for name, policy in contenders.items()
        ]
    rows = [
        Row(
            one.policy,
            one.mean_round,
            1 - one.mean_round / played[0].mean_round,
            one.least_share,
            PROMISE,
            one.worst_debt,
            one.certificate_holds,
        )
        for one in played
    ]
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_table(rows, rounds)
    if figure is not None:
        _draw(played, figure)


def _play(name: str, policy: SelectionPolicy, rounds: int, seed: int, advance: Callable[[], None]) -> Played:
    """Play, and keep the fairness books beside the policy, also for one that keeps none."""
    fleet = SmallFleet(seed)
    books = FairnessQueues(fleet.clients, PROMISE)
    turns = np.zeros(fleet.clients, dtype=np.int64)
    durations = np.empty(rounds)
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        report = fleet.play(offer, policy.ask(offer))
        policy.tell(report)
        books.advance(report.clients)
        turns[report.clients] += 1
        durations[round_ - 1] = report.duration
        advance()
    certificate = books.certificate(turns, rounds)
    return Played(name, durations, turns, float(certificate.owed.max()), certificate.holds)


def _print_table(rows: list[Row], rounds: int) -> None:
    table = Table(title=f"{rounds} rounds, 40 clients, {COHORT} a round, each promised {PROMISE:g} of the rounds")
    for heading in ("policy", "mean round", "time saved", "least chosen", "worst debt"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        table.add_row(
            row.policy,
            f"{row.mean_round_seconds:.2f} s",
            f"{row.time_saved:.0%}" if row.time_saved else "",
            f"{row.least_chosen_share:.3f}",
            f"{row.worst_debt_turns:.1f} turns",
        )
    console = Console()
    console.print(table)
    kept = all(row.certificate_holds for row in rows)
    console.print(
        "[b]least chosen[/b]: the share of rounds of the client that was chosen least.\n"
        "A larger weight gives shorter rounds, and pays its debts later.\n"
        f"Certificate (turns taken ≥ promised − owed, for every client): {'holds' if kept else 'DOES NOT HOLD'}.",
        highlight=False,
    )


def _draw(played: list[Played], path: Path) -> None:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise SettingError("drawing needs matplotlib: pip install 'turnout[plots]'") from missing
    colours = ("#777777", "#56b4e9", "#0072b2", "#d55e00")
    with mpl.rc_context({"svg.hashsalt": "turnout", "svg.fonttype": "none", "font.size": 10}):
        drawing = Figure(figsize=(9, 3.6), layout="constrained")
        time, share = drawing.subplots(1, 2)
        for one, colour in zip(played, colours, strict=True):
            time.plot(np.cumsum(one.durations) / 60, color=colour, label=one.policy)
            share.plot(np.sort(one.turns) / len(one.durations), color=colour, label=one.policy)
        share.axhline(PROMISE, color="black", linestyle=":", linewidth=1)
        share.annotate("promised", (39, PROMISE), xytext=(0, -11), textcoords="offset points", fontsize=9, ha="right")
        time.set(title="Training takes less time", xlabel="round", ylabel="minutes since the start")
        share.set(
            title="and this is what each client gets",
            xlabel="clients, least chosen first",
            ylabel="share of rounds",
        )
        share.set_ylim(bottom=0)
        time.legend(frameon=False)
        for axes in (time, share):
            axes.spines[["top", "right"]].set_visible(False)
        try:
            drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except (OSError, ValueError) as refused:
            raise SettingError(f"cannot draw into {path}: {refused}") from refused
