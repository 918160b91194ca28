"""Measures how many small faults the tests notice: `python -m mutants` in a checkout."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Annotated

import typer

from mutants.measure import Results, Settings, Trial, choose, fingerprint_of, measure, read_accepted, score
from mutants.packages import PACKAGES

ROOT = Path(__file__).parents[1]
COUNTED = ("killed", "timeout", "crashed", "survived", "accepted")
PACKAGE = "turnout"
OPTIONS = ("-p", "no:benchmark", "--hypothesis-profile=mutants")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"A package; repeatable: {', '.join(package.name for package in PACKAGES)}."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Mutants per package.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Mutants at the same time.")] = max(1, (os.cpu_count() or 2) // 2),
    budget: Annotated[float, typer.Option(min=1, help="Seconds that the tests of a mutant take at most.")] = 120.0,
    results: Annotated[Path, typer.Option(help="File that keeps what was found.")] = ROOT / "build" / "mutants.jsonl",
    fresh: Annotated[bool, typer.Option("--fresh", help="Try everything again.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Print the mutants, and try none.")] = False,
) -> None:
    """Make small faults in a copy of the package, one at a time, and print which of them no test notices.

    Ends with status 1 if a package has a lower score than it must have, or if a test fails without a fault.
    """
    by_name = {package.name: package for package in PACKAGES}
    unknown = [name for name in only or () if name not in by_name]
    if unknown:
        raise typer.BadParameter(f"there is no package {unknown[0]!r}: use {', '.join(by_name)}", param_hint="--only")
    packages = [by_name[name] for name in dict.fromkeys(only or by_name)]
    settings = Settings(
        root=ROOT,
        package=PACKAGE,
        count=count,
        seed=seed,
        workers=workers,
        budget=budget,
        accepted=read_accepted(ROOT / "mutants" / "accepted.toml"),
        calls=results.with_suffix(".calls"),
        options=OPTIONS,
    )
    if show:
        for package in packages:
            for mutant in choose(settings, package):
                typer.echo(f"{mutant.module}:{mutant.line}\n  - {mutant.before}\n  + {mutant.after}")
        return
    if fresh:
        results.unlink(missing_ok=True)
        shutil.rmtree(settings.calls, ignore_errors=True)
    # SIGTERM ends the tests that are running too, as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = measure(settings, packages, Results(results, fingerprint_of(ROOT)), _print_trial, _print_note)
    except RuntimeError as problem:
        typer.echo(str(problem), err=True)
        raise typer.Exit(2) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    is_enough = _print_scores(found.trials)
    for name in found.failing:
        typer.echo(f"{name} was not used, because it fails without a mutant: mend it")
    if found.failing or not is_enough:
        raise typer.Exit(1)


def _print_note(text: str) -> None:
    typer.echo(text, err=True)


def _print_trial(trial: Trial) -> None:
    typer.echo(f"{trial.outcome:9} {trial.mutant.module}:{trial.mutant.line}", err=True)


def _print_scores(trials: list[Trial]) -> bool:
    """Prints the survivors and the score of each package; returns whether every score suffices."""
    for trial in trials:
        if trial.outcome == "survived":
            mutant = trial.mutant
            typer.echo(f"{mutant.module}:{mutant.line} {mutant.where}\n  - {mutant.before}\n  + {mutant.after}")
    typer.echo(f"{'package':12}" + "".join(f"{title:>9}" for title in ("mutants", *COUNTED, "score")))
    is_enough = True
    for package in PACKAGES:
        own = [trial for trial in trials if trial.package == package.name]
        reached = score(own)
        if reached is None:
            continue
        outcomes = [trial.outcome for trial in own]
        counts = "".join(f"{number:9}" for number in (len(own), *map(outcomes.count, COUNTED)))
        verdict = "" if reached >= package.least else f", must be {package.least:.0%}"
        typer.echo(f"{package.name:12}{counts}{reached:9.0%}{verdict}")
        is_enough &= reached >= package.least
    return is_enough


if __name__ == "__main__":
    app()
