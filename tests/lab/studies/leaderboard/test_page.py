"""The tables of docs/leaderboard.md show the stored results."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from turnout.lab.studies.leaderboard.contenders import FED_BUFF
from turnout.lab.studies.leaderboard.suites import SUITES

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "docs" / "results"
PAGE = (ROOT / "docs" / "leaderboard.md").read_text()
COLUMNS = {
    "mean round, s": "mean_round",
    "largest shortfall": "shortfall",
    "at the end": "shortfall_at_end",
    "by completed turns": "shortfall_completed",
    "least share": "least_share",
    "minutes to 0.863": "minutes_to_target",
    "minutes to target": "minutes_to_target",
    "final accuracy": "final_accuracy",
    "× random": "speedup",
}
#: The suite of each folder without rounds; with rounds, the name of a folder begins with that of its suite.
SLOT_FOLDERS = {
    "async/paper": "async",
    "async/digits": "async-training",
    "async/cifar-10": "async-cifar-10",
    "async/phones-recorded": "async-traces",
    "async/phones": "async-traces",
}
FOLDERS = sorted(
    str(path.relative_to(RESULTS)) for name in ("leaderboard", "async") for path in (RESULTS / name).iterdir()
)
#: The folders that the page describes in a sentence.
FED_ASYNC = "random (FedAsync)"
WITHOUT_TABLE = {"leaderboard/numerical-3000", "leaderboard/traces", "async/digits", "async/phones"}


def stored_rows(folder: str) -> dict[str, dict[str, str]]:
    (table,) = (RESULTS / folder).glob("*.csv")
    with table.open() as file:
        return {row["contender"]: row for row in csv.DictReader(file)}


def read_tables() -> dict[str, list[dict[str, str]]]:
    """Returns the tables of policies by folder: that of the link or figure before the table."""
    tables: dict[str, list[dict[str, str]]] = {}
    folder, header = "", [""]
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = [""]
            linked = re.findall(r"results/((?:leaderboard|async)/[\w-]+)", line)
            folder = linked[-1] if linked else folder
        elif cells[0] == "policy":
            header = cells
        elif header[0] == "policy" and not set(line) <= set("|-"):
            tables.setdefault(folder, []).append(dict(zip(header, cells, strict=True)))
    return tables


def suite_of(folder: str) -> str:
    return SLOT_FOLDERS.get(folder) or folder.removeprefix("leaderboard/").partition("-")[0]


def test_every_folder_of_results_is_linked_and_has_a_table_or_a_sentence() -> None:
    assert set(read_tables()) == {*FOLDERS} - WITHOUT_TABLE
    text = " ".join(PAGE.split())
    means = {name: float(row["mean_round"]) for name, row in stored_rows("leaderboard/traces").items()}
    times = [mean for name, mean in means.items() if name.startswith("FairPace") and "true" not in name]
    seconds = " to ".join(dict.fromkeys(f"{mean:.0f}" for mean in (min(times), max(times))))
    shown = f"FairPace takes {seconds} s at every tolerance from 1 to 5, random selection"
    assert f"[generated phones](results/leaderboard/traces) {shown} {means['random']:.0f} s." in text
    digits = {name: float(row["minutes_to_target"]) for name, row in stored_rows("async/digits").items()}
    fair = [minutes for name, minutes in digits.items() if re.fullmatch(r"FairPace, \d+ %", name)]
    shown = f"FairPace needs {min(fair):.1f} to {max(fair):.1f} minutes to the target, random FedBuff"
    shown += f" {digits[FED_BUFF]:.1f} and FedAsync {digits[FED_ASYNC]:.1f}."
    assert f"[the digits](results/async/digits) {shown}" in text
    trained = [stored_rows(f"async/{name}") for name in ("digits", "cifar-10")]
    for end, words in (("", "in {:.2f} to {:.2f} of the time"), (", value", "in {:.2f} to {:.2f}.")):
        ratios = [
            float(rows[f"FairPace, {share} %{end}"]["minutes_to_target"]) / float(rows[FED_BUFF]["minutes_to_target"])
            for rows in trained
            for share in (50, 75, 95)
        ]
        assert words.format(min(ratios), max(ratios)) in text
    rows = trained[1]
    first, *others = (float(rows[name]["minutes_to_target"]) for name in ("FairPace, 50 %, value", FED_BUFF, FED_ASYNC))
    assert first == min(float(row["minutes_to_target"]) for row in rows.values())
    assert (
        "after {:.2f} of the time of FedBuff and {:.2f} of that of FedAsync".format(*(first / one for one in others))
        in text
    )
    rows = stored_rows("async/phones")
    speed = ", ".join(f"{float(rows[f'FairPace, {share} %']['speedup']):.2f}" for share in (50, 75, 95))
    before, last = speed.rsplit(", ", 1)
    assert f"[generated phones](results/async/phones) FairPace sends {before} and {last} times" in text


def test_the_numbers_of_long_runs_and_runs_without_rounds_are_the_stored_ones() -> None:
    guide = (ROOT / "docs" / "which-policy.md").read_text()
    rows = stored_rows("leaderboard/numerical-3000")
    horizon, fair = rows["RBCS-F, weight 20, fleet, horizon"], rows["FairPace, tolerance 2"]
    times = [float(row["mean_round"]) for row in (horizon, fair)]
    behind, near = (float(row["worst_shortfall"]) for row in (horizon, fair))
    # FairPace has the shorter mean, but the intervals overlap: it is as fast.
    assert times[1] < times[0] < times[1] + sum(float(row["mean_round_band"]) for row in (horizon, fair))
    assert all(float(row["worst_shortfall_at_end"]) <= 1.0 for row in (horizon, fair))
    text = " ".join(PAGE.split())
    assert "as fast as RBCS-F with a horizon of 3,000 rounds** ({1:.2f} and {0:.2f} s), and with".format(*times) in text
    assert f"are up to {behind:.1f} turns behind with RBCS-F, with FairPace at most {near:.1f}." in text
    assert "{:.2f} s each (fair-pace {:.2f} s), up to {:.1f} turns behind".format(*times, behind) in guide
    paper, phones = (
        [float(stored_rows(f"async/{name}")[f"FairPace, {share} %"]["speedup"]) for name in names for share in (95, 50)]
        for names in (["paper"], ["phones", "phones-recorded"])
    )
    assert f"FairPace sent {min(paper):.1f} to {max(phones):.1f} times as many updates" in PAGE
    shown = f"{min(paper):.1f} to {max(paper):.1f} times the updates of random selection in the paper's world"
    assert f"{shown}, {min(phones):.1f} to {max(phones):.1f} times on phones" in guide


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_stored_results_are_those_of_the_suite(folder: str) -> None:
    suite, stored = SUITES[suite_of(folder)], stored_rows(folder)
    promised = {
        contender.label: (contender.policy, contender.promised if suite.slots is None else contender.share)
        for contender in suite.contenders
    }
    column = "promised" if suite.slots is None else "promised_share"
    assert {label: (row["policy"], row[column]) for label, row in stored.items()} == {
        label: (policy, "nan" if promise is None else str(float(promise)))
        for label, (policy, promise) in promised.items()
    }
    if suite.slots is not None:
        data = json.loads((RESULTS / folder / "slots.json").read_text())
        assert (data["suite"], data["turns"], data["seeds"]) == (suite.name, suite.rounds, suite.seeds)
        assert (data["concurrency"], data["clients"], data["present"]) == (suite.slots, suite.clients, 1 / suite.rate)
        assert float(stored[FED_BUFF]["speedup"]) == 1.0
        fair = [row for label, row in stored.items() if label.startswith("FairPace")]
        assert [row["status"] for row in fair] == ["kept"] * (7 if suite.trains else 4)
        assert all(float(row["worst_shortfall"]) <= float(row["tolerance"]) for row in fair)


@pytest.mark.parametrize("folder", sorted({*FOLDERS} - WITHOUT_TABLE))
def test_the_tables_show_the_stored_results(folder: str) -> None:
    stored, rows = stored_rows(folder), read_tables()[folder]
    if folder in SLOT_FOLDERS:
        assert {row["policy"] for row in rows} == stored.keys()
    for shown in rows:
        row = stored[shown.pop("policy")]
        promised = row.get("promised", row.get("promised_share"))
        assert shown.pop("promise") == (row["status"] if promised != "nan" else f"({row['status']})"), row["contender"]
        for heading, text in shown.items():
            name = COLUMNS[heading]
            digits = len(re.split(r"[ ±(]", text.removeprefix("≥ "))[0].partition(".")[2])
            mean = f"{float(row[name]):.{digits}f}"
            if name.startswith("shortfall"):
                expected = f"{mean} ({float(row[f'worst_{name}']):.{digits}f})".replace("-", "−")
            else:
                never = name == "minutes_to_target" and int(row["never"])
                expected = f"{'≥ ' if never else ''}{mean} ± {float(row[f'{name}_band']):.{digits}f}"
            assert text == expected, (row["contender"], heading)
