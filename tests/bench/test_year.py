"""`turnout bench year`."""

from __future__ import annotations

import json

from cli.in_process import run

SMALL = ("--clients", "20", "--cohort", "3", "--rounds", "120")


def test_a_file_with_retention_stops_growing_and_one_without_does_not() -> None:
    bounded = json.loads(run("bench", "year", *SMALL, "--keep-rounds", "15", "--keep-offers", "5", "--json").stdout)
    growing = json.loads(run("bench", "year", *SMALL, "--json").stdout)
    assert bounded["rounds"] == growing["rounds"] == list(range(12, 121, 12))
    assert (bounded["summary_round"] >= 50, growing["summary_round"]) == (True, 0)
    assert bounded["sizes"][-1] < growing["sizes"][-1]
    for figures in (bounded, growing):
        growth = (figures["sizes"][9] - figures["sizes"][4]) / 60
        assert figures["bytes_a_round"] == growth
        assert figures["year_bytes"] == figures["sizes"][9] + max(growth, 0) * (52_560 - 120)


def test_the_table_names_the_size_of_a_year() -> None:
    done = run("bench", "year", *SMALL[:4], "--rounds", "40", "--no-persist-statuses")
    assert done.returncode == 0
    assert "20 clients, 3 in a round; all rounds are kept" in done.stdout
    assert "After a year with a round every ten minutes (52,560 rounds) it would have" in done.stdout
    assert "keep_rounds must be" in run("bench", "year", *SMALL, "--keep-rounds", "soon").stderr
