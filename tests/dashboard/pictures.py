"""Takes the screenshots of the dashboard for the documentation: `make pictures`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.browser import Browser, Page
from benchmarks.dashboard import turn_to
from benchmarks.harness import served
from turnout.lab import RunPlan, RunStore, sweep
from turnout.live import ClientStatus, Scheduler

WIDTH, HEIGHT = 1280, 900
Picture = tuple[str, str, dict[str, str]]
#: The store, the page and its settings for each picture of the documentation.
PICTURES: dict[str, Picture] = {
    "runs": ("runs", "runs", {"sort": "mean_round", "order": "asc", "pick": "1,2,3,13,14,15,16,17,18"}),
    "overview": ("fleet", "overview", {}),
    "queues": ("runs", "queues", {}),
    "speed": ("fleet", "speed", {}),
    "client": ("fleet", "client", {"id": "phone-31", "round": "120"}),
    "compare": ("runs", "compare", {}),
}
#: The same in the dark theme, and on a phone.
DARK: dict[str, Picture] = {"dark": ("runs", "compare", {"show": "FairPace"})}
PHONE: dict[str, Picture] = {"phone": ("fleet", "overview", {}), "phone-runs": ("runs", "runs", {})}
WIDE: dict[str, Any] = {"width": WIDTH, "height": HEIGHT}
NARROW: dict[str, Any] = {"width": 390, "height": 844, "scale": 1.5, "phone": True}
CLIENTS = 40


def take_all(
    folder: Path,
    *,
    only: Collection[str] = (),
    rounds: int = 200,
    seeds: int = 3,
    fleet_rounds: int = 160,
    running: Browser | None = None,
) -> list[Path]:
    """Takes the pictures of the documentation; returns their paths.

    Args:
        folder: Where the pictures are written.
        only: The names of the pictures to take; by default all.
        rounds: The number of rounds of each training run.
        seeds: The number of training runs of each policy.
        fleet_rounds: The number of rounds of the fleet before the first picture.
        running: The browser, if one runs already; it is left open.
    """
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    screens = [
        (screen, {name: picture for name, picture in pictures.items() if not only or name in only})
        for screen, pictures in ((WIDE, PICTURES), (WIDE | {"dark": True}, DARK), (NARROW, PHONE))
    ]
    kinds = {kind for _, pictures in screens for kind, _, _ in pictures.values()}
    with tempfile.TemporaryDirectory() as temporary, Browser() if running is None else nullcontext(running) as browser:
        runs, fleet = Path(temporary) / "runs.turnout", Path(temporary) / "fleet.turnout"
        with ExitStack() as stack:
            urls = {}
            if "runs" in kinds:
                make_runs(runs, rounds=rounds, seeds=seeds)
                urls["runs"] = stack.enter_context(served("dashboard", runs)).url
            if "fleet" in kinds:
                stack.enter_context(playing(fleet, fleet_rounds))
                urls["fleet"] = stack.enter_context(served("dashboard", fleet)).url
            for screen, pictures in screens:
                shown = {kind for kind, _, _ in pictures.values()}
                opened = {kind: open_dashboard(browser.page(**screen), urls[kind]) for kind in shown}
                for name, (kind, page, settings) in pictures.items():
                    taken.append(_take(opened[kind], folder / f"{name}.png", page, settings))
                for page_of_kind in opened.values():
                    page_of_kind.close()
    return taken


def open_dashboard(page: Page, url: str) -> Page:
    """Opens the dashboard and waits for its first page."""
    page.open(url)
    turn_to(page, "overview")
    return page


def make_runs(path: Path, *, rounds: int = 200, seeds: int = 3) -> None:
    """Writes training runs of six policies, judged by FairPace's promise; the pages show the last one, RBCS-F."""
    policies = {
        "FairPace": ("fair-pace", {}),
        "round robin": ("round-robin", {}),
        "Oort": ("oort", {}),
        "FedCS(3)": ("fedcs", {}),
        "random": ("random", {}),
        "RBCS-F": ("rbcsf", {"speed_weight": 5.0}),
    }
    plans = [
        RunPlan(policy, rounds, seed, settings, "training", {"items": 50, "hidden": 16}, label=label)
        for label, (policy, settings) in policies.items()
        for seed in range(seeds)
    ]
    with RunStore(path) as store:
        sweep(plans, store, workers=1)


@contextmanager
def playing(path: Path, rounds: int) -> Iterator[None]:
    """Plays rounds of a fleet of phones, and more until the block ends: some are slow, become slower or fail."""
    settings = {"cohort_size": 6, "guaranteed_rate": 0.1}
    with Scheduler.open(path, policy="fair-pace", settings=settings, deadline=90.0) as scheduler:
        for _ in range(rounds):
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
    # Pages have few colours: a palette of the most frequent ones makes the files three times as small.
    with Image.open(path) as opened:
        picture, palette = opened.convert("RGB"), Image.new("P", (1, 1))
    counted: list[Any] = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)[:256]
    palette.putpalette([part for _, colour in counted for part in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for picture in take_all(parser.parse_args().folder):
        sys.stdout.write(f"{picture} ({picture.stat().st_size / 1e3:.0f} kB)\n")
