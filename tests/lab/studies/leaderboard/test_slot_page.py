"""The tables of docs/leaderboard.md without rounds show the stored results."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from turnout.lab.studies.leaderboard.slots import REFERENCE, SLOT_SUITES

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "docs" / "results" / "async"
FOLDERS = {
    "paper": "async",
    "digits": "async-training",
    "cifar-10": "async-cifar-10",
    "phones-recorded": "async-traces",
    "phones": "async-traces",
}
COLUMNS = {
    "× random": "speedup",
    "minutes to target": "minutes_to_target",
    "final accuracy": "final_accuracy",
    "largest shortfall": "shortfall",
}


def stored_rows(folder: str) -> dict[str, dict[str, str]]:
    with (RESULTS / folder / "slots.csv").open() as file:
        return {row["contender"]: row for row in csv.DictReader(file)}


def shown_rows(folder: str) -> list[dict[str, str]]:
    """Returns the rows of the table after the figure of a folder."""
    text = (ROOT / "docs" / "leaderboard.md").read_text()
    section = text.split(f"](results/async/{folder}/slots.svg)")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_every_folder_of_results_is_known() -> None:
    assert {path.name for path in RESULTS.iterdir()} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_stored_results_are_those_of_the_contenders_of_the_suite(folder: str) -> None:
    contenders = {contender.label: contender for contender in SLOT_SUITES[FOLDERS[folder]].contenders}
    stored = stored_rows(folder)
    assert stored.keys() == contenders.keys()
    for label, row in stored.items():
        share = contenders[label].share
        assert row["promised_share"] == ("nan" if share is None else str(float(share)))
    assert float(stored[REFERENCE]["speedup"]) == 1.0


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_stored_results_have_the_turns_and_seeds_of_the_suite(folder: str) -> None:
    suite = SLOT_SUITES[FOLDERS[folder]]
    stored = json.loads((RESULTS / folder / "slots.json").read_text())
    assert (stored["suite"], stored["turns"], stored["seeds"]) == (suite.name, suite.turns, suite.seeds)
    assert (stored["concurrency"], stored["clients"]) == (suite.slots, suite.clients)


def test_the_sentences_about_the_other_folders_show_the_stored_results() -> None:
    text = " ".join((ROOT / "docs" / "leaderboard.md").read_text().split())
    digits = {name: float(row["minutes_to_target"]) for name, row in stored_rows("digits").items()}
    fair = [minutes for name, minutes in digits.items() if re.fullmatch(r"FairPace, \d+ %", name)]
    shown = f"FairPace needs {min(fair):.1f} to {max(fair):.1f} minutes to the target, random FedBuff"
    shown += f" {digits['random (FedBuff)']:.1f} and FedAsync {digits['random (FedAsync)']:.1f}."
    assert f"[the digits](results/async/digits) {shown}" in text
    speed = [float(stored_rows("phones")[f"FairPace, {share} %"]["speedup"]) for share in (50, 75, 95)]
    assert (
        "[generated phones](results/async/phones) FairPace sends {:.2f}, {:.2f} and {:.2f} times".format(*speed) in text
    )


@pytest.mark.parametrize("folder", ["paper", "cifar-10", "phones-recorded"])
def test_the_tables_show_the_stored_results(folder: str) -> None:
    stored = stored_rows(folder)
    rows = shown_rows(folder)
    assert {row["policy"] for row in rows} == stored.keys()
    for shown in rows:
        row = stored[shown.pop("policy")]
        status = row["status"] if row["promised_share"] != "nan" else f"({row['status']})"
        assert shown.pop("promise") == status, row["contender"]
        for heading, text in shown.items():
            name = COLUMNS[heading]
            digits = len(re.split(r"[ ±(]", text.removeprefix("≥ "))[0].partition(".")[2])
            mean = f"{float(row[name]):.{digits}f}"
            if name == "shortfall":
                expected = f"{mean} ({float(row['worst_shortfall']):.{digits}f})"
            else:
                expected = f"{mean} ± {float(row[f'{name}_band']):.{digits}f}"
                if name == "minutes_to_target" and int(row["never"]):
                    expected = f"≥ {expected}"
            assert text == expected, (row["contender"], heading)


@pytest.mark.parametrize("folder", FOLDERS)
def test_nobody_was_ever_beyond_the_tolerance_of_fair_pace(folder: str) -> None:
    promised = [row for label, row in stored_rows(folder).items() if label.startswith("FairPace")]
    assert len(promised) == 4
    for row in promised:
        assert float(row["worst_shortfall"]) <= float(row["tolerance"])
        assert row["status"] == "kept"
