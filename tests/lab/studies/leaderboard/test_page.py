"""The tables of docs/leaderboard.md show the stored results."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from turnout.lab.studies.leaderboard.suites import SUITES

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "docs" / "results" / "leaderboard"
COLUMNS = {
    "mean round, s": "mean_round",
    "largest shortfall": "shortfall",
    "at the end": "shortfall_at_end",
    "least share": "least_share",
    "minutes to 0.863": "minutes_to_target",
    "final accuracy": "final_accuracy",
}


def read_tables() -> dict[str, list[dict[str, str]]]:
    """Returns the tables of policies by folder: that of the link or figure before the table."""
    tables: dict[str, list[dict[str, str]]] = {}
    folder, header = "", [""]
    text = (ROOT / "docs" / "leaderboard.md").read_text().split("\n## Without rounds\n")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = [""]
            linked = re.findall(r"results/leaderboard/([\w-]+)", line)
            folder = linked[-1] if linked else folder
        elif cells[0] == "policy":
            header = cells
        elif header[0] == "policy" and not set(line) <= set("|-"):
            tables.setdefault(folder, []).append(dict(zip(header, cells, strict=True)))
    return tables


def test_every_folder_of_results_is_linked_and_has_a_table_or_a_sentence() -> None:
    folders = {path.name for path in RESULTS.iterdir()}
    assert set(read_tables()) == folders - {"traces"}
    text = " ".join((ROOT / "docs" / "leaderboard.md").read_text().split())
    with (RESULTS / "traces" / "leaderboard.csv").open() as file:
        means = {row["contender"]: float(row["mean_round"]) for row in csv.DictReader(file)}
    times = [mean for name, mean in means.items() if name.startswith("FairPace") and "true" not in name]
    shown = f"FairPace takes {min(times):.0f} to {max(times):.0f} s at every tolerance from 1 to 5, random selection"
    assert f"[generated phones](results/leaderboard/traces) {shown} {means['random']:.0f} s." in text


@pytest.mark.parametrize("folder", sorted(path.name for path in RESULTS.iterdir()))
def test_the_stored_results_are_those_of_the_contenders_of_the_suite(folder: str) -> None:
    with (RESULTS / folder / "leaderboard.csv").open() as file:
        stored = {(row["contender"], row["policy"], row["promised"]) for row in csv.DictReader(file)}
    contenders = SUITES[folder.partition("-")[0]].contenders
    assert stored == {(contender.label, contender.policy, str(contender.promised or "nan")) for contender in contenders}


@pytest.mark.parametrize("folder", sorted(path.name for path in RESULTS.iterdir()))
def test_the_tables_show_the_stored_results(folder: str) -> None:
    with (RESULTS / folder / "leaderboard.csv").open() as file:
        stored = {row["contender"]: row for row in csv.DictReader(file)}
    for shown in read_tables().get(folder, []):
        row = stored[shown.pop("policy")]
        promise = row["status"] if row["promised"] != "nan" else f"({row['status']})"
        assert shown.pop("promise") == promise, row["contender"]
        for heading, text in shown.items():
            name = COLUMNS[heading]
            digits = len(re.split(r"[ ±(]", text)[0].partition(".")[2])
            mean = f"{float(row[name]):.{digits}f}"
            if name.startswith("shortfall"):
                expected = f"{mean} ({float(row[f'worst_{name}']):.{digits}f})".replace("-", "−")
            else:
                expected = f"{mean} ± {float(row[f'{name}_band']):.{digits}f}"
            assert text == expected, (row["contender"], heading)
