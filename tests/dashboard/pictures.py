"""Takes the screenshots of the dashboard for the documentation: `make pictures`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.browser import Browser, Page
from benchmarks.dashboard import turn_to
from turnout.bench.dashboard import dashboard_of
from turnout.scheduler import ClientStatus, Scheduler
from turnout.simulator import RunPlan, sweep
from turnout.store import RunStore

WIDTH, HEIGHT = 1280, 900
#: The store, the page and its settings for each picture.
PICTURES: dict[str, tuple[str, str, dict[str, str]]] = {
    "overview": ("fleet", "overview", {}),
    "queues": ("runs", "queues", {}),
    "speed": ("fleet", "speed", {}),
    "client": ("fleet", "client", {"id": "phone-31", "round": "120"}),
    "compare": ("runs", "compare", {}),
}
DARK, PHONE = "fairness", "overview"
CLIENTS, ROUNDS = 40, 160


def take_all(folder: Path, *, rounds: int = 200, seeds: int = 3) -> list[Path]:
    """Takes the pictures in PICTURES, one in the dark theme and one on a phone; returns their paths.

    Args:
        folder: Where the pictures are written.
        rounds: The number of rounds of each training run.
        seeds: The number of training runs of each policy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with tempfile.TemporaryDirectory() as temporary, Browser() as browser:
        runs, fleet = Path(temporary) / "runs.turnout", Path(temporary) / "fleet.turnout"
        make_runs(runs, rounds=rounds, seeds=seeds)
        with playing(fleet), dashboard_of(runs) as runs_url, dashboard_of(fleet) as fleet_url:
            urls = {"runs": runs_url, "fleet": fleet_url}
            wide = {kind: open_dashboard(browser.page(width=WIDTH, height=HEIGHT), url) for kind, url in urls.items()}
            for name, (kind, page, settings) in PICTURES.items():
                taken.append(_take(wide[kind], folder / f"{name}.png", page, settings))
            dark = open_dashboard(browser.page(width=WIDTH, height=HEIGHT, dark=True), fleet_url)
            taken.append(_take(dark, folder / "dark.png", DARK, {}))
            phone = open_dashboard(browser.page(width=390, height=844, scale=2.0, phone=True), fleet_url)
            taken.append(_take(phone, folder / "phone.png", PHONE, {}))
    return taken


def open_dashboard(page: Page, url: str) -> Page:
    """Opens the dashboard and waits for its first page."""
    page.open(url)
    turn_to(page, "overview")
    return page


def make_runs(path: Path, *, rounds: int = 200, seeds: int = 3) -> None:
    """Writes training runs of six policies; the pages show the last one, FairPace."""
    policies = {
        "round robin": ("round-robin", {}),
        "Oort": ("oort", {}),
        "FedCS(3)": ("fedcs", {}),
        "random": ("random", {}),
        "RBCS-F": ("rbcsf", {"speed_weight": 5.0}),
        "FairPace": ("fair-pace", {}),
    }
    plans = [
        RunPlan(policy, rounds, seed, settings, "training", {"items": 50, "hidden": 16}, label=label)
        for label, (policy, settings) in policies.items()
        for seed in range(seeds)
    ]
    with RunStore(path) as store:
        sweep(plans, store, workers=1)


@contextmanager
def playing(path: Path) -> Iterator[None]:
    """Plays a fleet of phones until the block ends: a quarter is slow, one becomes slower, some fail."""
    settings = {"cohort_size": 6, "guaranteed_rate": 0.1}
    with Scheduler.open(path, policy="fair-pace", settings=settings, deadline=90.0) as scheduler:
        for _ in range(ROUNDS):
            _play(scheduler)

        with meanwhile(lambda: _play(scheduler), every=1.0):
            yield


@contextmanager
def meanwhile(step: Callable[[], None], *, every: float) -> Iterator[None]:
    """Repeats `step` in a thread every `every` seconds until the block ends."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(every):
            step()

    player = threading.Thread(target=repeat)
    player.start()
    try:
        yield
    finally:
        stop.set()
        player.join()


def _play(scheduler: Scheduler) -> None:
    number = scheduler.round + 1
    rng = np.random.default_rng(number)
    statuses, true_seconds = {}, {}
    for row in range(CLIENTS):
        slow = row >= 3 * CLIENTS // 4
        cpu, bandwidth = (
            (rng.uniform(0.3, 0.5), rng.uniform(1.0, 1.6)) if slow else (rng.uniform(0.9, 2.0), rng.uniform(2.0, 4.0))
        )
        seconds = (3.0 / cpu + 20.0 / bandwidth) * rng.gamma(12.0, 1 / 12.0)
        if row == 7 and number > 80:  # another program uses its processor
            seconds *= 2.5
        client = f"phone-{row:02d}"
        if rng.random() < 0.85:
            statuses[client], true_seconds[client] = ClientStatus(cpu, bandwidth), float(seconds)
    for client in scheduler.choose(statuses):
        if rng.random() < 0.015:
            scheduler.report_failure(client, "the battery ran out")
        elif true_seconds[client] < 90:
            scheduler.report(client, true_seconds[client], loss=float(0.2 + 2 / (1 + number / 12)))
    scheduler.close_round()


def _take(page: Page, path: Path, name: str, settings: dict[str, str]) -> Path:
    turn_to(page, name, **settings)
    page.screenshot(path, whole=True)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for picture in take_all(parser.parse_args().folder):
        sys.stdout.write(f"{picture} ({picture.stat().st_size / 1e3:.0f} kB)\n")
