"""`turnout check --concurrency`."""

from __future__ import annotations

import json

import pytest

from cli import in_process


def run(*arguments: str) -> in_process.Done:
    return in_process.run("check", "--concurrency", *arguments, COLUMNS="300")


def test_the_largest_rate_of_slots_is_shown_with_and_without_a_promise() -> None:
    answer = json.loads(run("2", "--times", "1,1,1,10", "--json").stdout)
    assert answer["largest_feasible_rate"] == pytest.approx(1 / 11)
    assert answer["rate"] == pytest.approx(0.9 / 11)
    assert (answer["feasible"], answer["clients"], answer["concurrency"]) == (True, 4, 2)
    assert answer["largest_concurrency_for_equal_shares"] == 1
    done = run("2", "--times", "1,2,10", "--rate", "0.095")
    assert done.returncode == 0
    assert "The largest feasible rate is 0.1.\nAbove 0.9 of it, 0.09, hardly any slot" in done.stdout
    assert "on purpose could guarantee 0.153846." in done.stdout
    assert "hardly" not in run("2", "--times", "1,2,10", "--rate", "0.09").stdout


def test_a_rate_that_slow_clients_cannot_have_is_not_feasible() -> None:
    done = run("2", "--times", "1,1,1,10", "--rate", "0.1")
    assert done.returncode == 1
    assert "a client whose turns last 10 s cannot have more. Use a guaranteed_rate of at most 0.0909091" in done.stdout
    assert "or use at most 1 slot." in done.stdout
    done = run("3", "--times", "5", "--clients", "10", "--rate", "0.2")
    assert done.returncode == 1
    assert "at most 0.1." in done.stdout  # fewer slots would not help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--concurrency 2", "--concurrency needs --times"),
        ("--concurrency 2 --times 1,x", "times must be numbers"),
        ("--concurrency 2 --times 1,0", "must be above 0"),
        ("--concurrency 2 --times 1,2 --clients 3", "times has 2 numbers, but there are 3 clients"),
        ("--concurrency 2 --times 1 --cohort-size 3", "--cohort-size cannot be used with --concurrency"),
        ("--times 5", "--times needs --concurrency"),
    ],
)
def test_invalid_questions_are_refused(arguments: str, message: str) -> None:
    assert message in in_process.error_of("check", *arguments.split())
