from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from cli import in_process
from live.fleets import play_round
from live.forging import alter
from narrowing import known
from turnout.kernel.certificate import Certificate
from turnout.live import ClientStatus, Feature, Features, FleetReader, Scheduler

COMMANDS = [("status",), ("certify",), ("history", "phone-00"), ("export",), ("doctor",)]
SETTINGS = {"cohort_size": 3, "guaranteed_rate": 0.1}


run, output_of = partial(in_process.run, "fleet"), partial(in_process.output_of, "fleet")
json_of, error_of = partial(in_process.json_of, "fleet"), partial(in_process.error_of, "fleet")


def status_of(number: int) -> ClientStatus:
    return ClientStatus(free_cpu=0.5 + 0.1 * number, bandwidth=3.0)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty closed rounds in which phone-03 always fails and phone-05 is always late, and an open round."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.turnout"
    rng = random.Random(0)
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        for _ in range(30):
            for client in scheduler.choose({f"phone-{n:02}": status_of(n) for n in range(8)}):
                if client == "phone-03":
                    scheduler.report_failure(client, "battery empty")
                elif client != "phone-05":
                    scheduler.report(client, rng.uniform(5, 29))
            scheduler.close_round()
            late = [turn for turn in scheduler.history("phone-05") if turn.kind == "late" and not turn.late_seconds]
            if late:
                scheduler.report("phone-05", 42.5, round=late[-1].round)
        chosen = scheduler.choose({f"phone-{n:02}": status_of(n) for n in range(8)})
        scheduler.report(chosen[0], 7.0)
        scheduler.report_failure(chosen[1], "no network")
    return path


@pytest.fixture
def file(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A fleet with clients whose ids and failure reasons contain terminal control codes and markup."""
    path = tmp_path / "odd.turnout"
    with Scheduler.open(path, settings={"cohort_size": 3, "guaranteed_rate": 0.1}, backoff_after=1) as scheduler:
        names = ["\x1b[31mred", "[bold]fat[/bold]", "two\nlines"]
        for client in scheduler.choose({name: status_of(1) for name in names}):
            scheduler.report_failure(client, "\x1b]0;title\x07 [/nothing]")
        scheduler.close_round(after=1.0)
        scheduler.choose({name: status_of(1) for name in names})
    return path


def play_slow_and_fast(path: Path, rounds: int, **settings: Any) -> None:
    """A fleet of rbcsf with a weight so large that it selects the fast client, from the second round on."""
    every = {"cohort_size": 1, "speed_weight": 1e6, "max_owed": 1000, **settings}
    with Scheduler.open(path, policy="rbcsf", settings=every, deadline=30.0) as scheduler:
        for number in range(rounds):
            present = ["slow"] if number == 0 else ["slow", "fast"]
            play_round(scheduler, {name: status_of(1) for name in present}, {"fast": 1.0, "slow": 20.0})


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Forty rounds with a guaranteed rate of a half, in which the slow client got one turn."""
    path = tmp_path / "broken.turnout"
    play_slow_and_fast(path, 40, guaranteed_rate=0.5)
    return path


# status


def test_the_status_shows_the_open_round_and_pending_clients(file: Path) -> None:
    with FleetReader(file) as scheduler:
        (out,) = scheduler.status().out
    shown = output_of("status", file)
    for text in (
        "8, 0 of them retired",
        "31, open for",
        "deadline 30.0 s",
        "1 of 3 required",
        f"│ {out}",
        "no network",
        "phone-03 until round",
        "promise",
    ):
        assert text in shown


def test_the_status_has_the_sentence_of_the_certificate_and_names_clients_that_are_behind(broken: Path) -> None:
    with FleetReader(broken) as scheduler:
        certificate, ids, status = scheduler.certificate(), scheduler.clients, scheduler.status()
    shown = " ".join(output_of("status", broken).replace("│", " ").split())
    assert f"promise {certificate.summary().sentence(ids.__getitem__)}" in shown
    assert f"behind slow by {status.behind['slow']:.2f} turns" in shown
    promise = json_of("status", broken)["promise"]
    assert (promise["status"], promise["worst"], promise["tolerance"]) == ("broken", "slow", 2.0)


def test_the_status_as_json_equals_that_of_the_scheduler(file: Path) -> None:
    shown = json_of("status", file)
    with FleetReader(file) as scheduler:
        status = scheduler.status()
        promise = scheduler.certificate().summary().to_dict(scheduler.clients.__getitem__)
        backed_off = known(scheduler.certificate().backed_off)
        counts = {name: int(count) for name, count in zip(scheduler.clients, backed_off, strict=True) if count}
        further = {"scheduler": None, "overdue": shown["overdue"], "backed_off": counts}
        assert {**asdict(status), "elapsed": shown["elapsed"], "promise": promise, **further} == shown
    assert shown["elapsed"] > 0


def test_the_status_names_closed_rounds_new_fleets_and_deadlines(file: Path, tmp_path: Path) -> None:
    with Scheduler.open(file) as scheduler:
        scheduler.close_round()
    assert "31 is closed, no round is open" in output_of("status", file)
    Scheduler.open(tmp_path / "new.turnout").close()
    text = output_of("status", tmp_path / "new.turnout")
    assert "no round was opened yet" in text
    assert "no deadline is set" in text
    with Scheduler.open(tmp_path / "f", settings={"cohort_size": 1, "guaranteed_rate": 0}, deadline=1e-6) as scheduler:
        scheduler.choose({"a": status_of(1)})
        text = output_of("status", tmp_path / "f")
        assert re.search(r"\nRound 1 is overdue by [\d.]+ s\.\n$", text), text
        assert f"process {os.getpid()} on host" in text
        assert json_of("status", tmp_path / "f")["scheduler"].startswith(f"process {os.getpid()} ")
    text = output_of("status", tmp_path / "f")
    assert "exceeded by" in text
    assert re.search(r"Round 1 is overdue by [\d.]+ s, and no scheduler is running: start the server again", text), text
    assert json_of("status", tmp_path / "f")["overdue"] > 0


def test_a_back_off_has_a_row_in_the_status_and_a_column_in_the_certificate(tmp_path: Path) -> None:
    path, clients = tmp_path / "fleet.turnout", [f"phone-{n}" for n in range(4)]
    late, backed_off = 0, Counter[str]()
    with Scheduler.open(path, settings={"cohort_size": 2, "guaranteed_rate": 0.2}, deadline=9.0) as scheduler:
        for number in range(1, 61):
            backed_off.update(scheduler.status().backing_off.keys())
            cohort = scheduler.choose(clients)
            for client in cohort:
                if client == "phone-3":
                    scheduler.report_failure(client, "no power")
                elif client != "phone-2":
                    scheduler.report(client, 2.0 + int(client[-1]))
            late = number if "phone-2" in cohort else late
            scheduler.close_round(after=9.0)
            if number % 20 == 0:
                scheduler.report("phone-2", 11.0, round=late)  # ends its back-off early
    assert backed_off["phone-3"] > backed_off["phone-2"] > 10
    answer = json.loads(run("certify", path, "--json").stdout)
    shown = {client["client"]: client["backed_off"] for client in answer["clients"]}
    assert shown == {client: backed_off[client] for client in clients}
    text = run("certify", path).stdout
    assert re.search(rf"phone-3 .*│ +{backed_off['phone-3']} │", text), text
    assert "owed" not in text
    assert "backed off: rounds in which a client was not offered a turn" in text
    assert f"inclusive; {backed_off['phone-3']} rounds so far" in output_of("status", path)
    assert json_of("status", path)["backed_off"] == {name: count for name, count in shown.items() if count}


# certificate


def test_the_certificate_lists_the_clients_that_are_furthest_behind_first(file: Path) -> None:
    with FleetReader(file) as scheduler:
        certificate, ids = scheduler.certificate(), scheduler.clients
    summary, row = certificate.summary(), ids.index("phone-05")
    done = run("certify", file)
    assert done.returncode == int(summary.status == "broken")
    assert done.stdout.endswith(f"Promise {summary.sentence(ids.__getitem__)}.\n")
    shown = json.loads(run("certify", file, "--json").stdout)
    assert shown["promise"] == summary.to_dict(ids.__getitem__)
    assert shown["of"] == len(shown["clients"]) == 8
    behind = [client["behind"] for client in shown["clients"]]
    assert behind == sorted(behind, reverse=True)
    (late,) = [client for client in shown["clients"] if client["client"] == "phone-05"]
    assert late == {
        "client": "phone-05",
        "turns": int(certificate.turns[row]),
        "promised": float(certificate.promised[row]),
        "behind": float(certificate.behind[row]),
        "status": str(certificate.statuses[row]),
        "unserved": False,
        "owed": None,  # fair-pace has no queue
        "forfeited": float(certificate.forfeited[row]),
        "backed_off": int(known(certificate.backed_off)[row]),
    }


def test_twenty_clients_are_shown_by_default_and_all_with_the_option(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 3, "guaranteed_rate": 0.05}, deadline=9.0) as scheduler:
        scheduler.register([f"phone-{n:02}" for n in range(30)])
    assert len(json_of("certify", path)["clients"]) == 20
    assert len(json_of("certify", path, "--all")["clients"]) == 30
    assert "The 20 of 30 clients that are furthest behind" in output_of("certify", path)
    assert "phone-29" in output_of("certify", path, "--all")


def test_a_broken_promise_exits_with_code_one_unless_another_tolerance_is_given(broken: Path) -> None:
    done = run("certify", broken)
    assert done.returncode == 1
    assert re.search(r"slow +│ +20\.00 │ +1 │ +\+19\.00 │ broken", done.stdout)
    assert "Promise broken: slow is 19.00 turns behind, beyond the tolerance of 2" in done.stdout
    as_json = run("certify", broken, "--json")
    assert as_json.returncode == 1
    result = json.loads(as_json.stdout)
    counts = {"kept": 1, "behind": 0, "broken": 1, "unserved": 0}
    assert result["promise"].items() >= {"status": "broken", "worst": "slow", "worst_behind": 19.0, **counts}.items()
    done = run("certify", broken, "--tolerance", "19")
    assert done.returncode == 0
    assert "Promise behind: slow is 19.00 turns behind, within the tolerance of 19" in done.stdout
    assert "tolerance must be above 0" in error_of("certify", broken, "--tolerance", "0")


def test_owed_and_forfeited_turns_are_shown_and_explained_where_they_differ_from_behind(tmp_path: Path) -> None:
    plain, capped = tmp_path / "plain.turnout", tmp_path / "capped.turnout"
    play_slow_and_fast(plain, 4, guaranteed_rate=0.25)
    shown = output_of("certify", plain)
    assert "forfeited" not in shown
    play_slow_and_fast(capped, 40, guaranteed_rate=0.5, max_owed=1)
    shown = run("certify", capped).stdout
    assert re.search(r"slow .*│ +1\.00 │ +18\.50 │", shown), shown
    assert "forfeited: 18.50 turns were dropped from the queue because of max_owed; behind still counts them." in shown
    assert "a client that once had a surplus can be owed more than it is behind" not in shown


def test_a_positive_queue_of_a_client_with_a_surplus_is_explained(file: Path) -> None:
    with FleetReader(file) as reader:
        early, steady, *_ = ids = reader.state().fleet.ids
    none, owed = np.zeros(len(ids), dtype=np.int64), np.array([4] + [0] * (len(ids) - 1))
    surplus = Certificate(
        turns=none + 5, units_per_turn=10, promised_units=none + 20, owed_units=owed, forfeited_units=none
    )
    with patch.object(FleetReader, "certificate", return_value=surplus):
        shown = output_of("certify", file)
    assert re.search(rf"{early} +│ +2\.00 │ +5 │ +-3\.00 │ kept +│ +0\.40 │", shown), shown
    assert re.search(rf"{steady} +│ +2\.00 │ +5 │ +-3\.00 │ kept +│ +│", shown), shown
    assert "a client that once had a surplus can be owed more than it is behind" in shown


def test_clients_without_a_turn_for_lack_of_rounds_are_named(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 1, "guaranteed_rate": 0.1}, deadline=9.0) as scheduler:
        scheduler.register(["late-comer"])
        for _ in range(3):
            play_round(scheduler, {"a": status_of(1)}, 2.0)
    shown = output_of("certify", path)
    assert "too few rounds to be promised one: late-comer." in shown
    assert "1 client was there for too few rounds to be served" in shown
    certificate = {client["client"]: client for client in json_of("certify", path)["clients"]}
    assert (certificate["late-comer"]["unserved"], certificate["a"]["unserved"]) == (True, False)


def test_a_policy_without_a_guarantee_has_no_certificate(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy="random", settings={"cohort_size": 1}, deadline=9.0) as scheduler:
        play_round(scheduler, {"a": status_of(1)}, 2.0)
    assert "guarantees nothing" in error_of("certify", path)
    assert json_of("history", path, "a")["owed"] is None
    assert "selected 1 time, of which 1 counts as a turn, reliability 0.67\n" in output_of("history", path, "a")


# history


def test_a_history_shows_outcomes_reasons_and_late_times(file: Path) -> None:
    assert "there is no client 'phone-99'" in error_of("history", file, "phone-99")
    assert "battery empty" in output_of("history", file, "phone-03")
    text = output_of("history", file, "phone-05")
    for expected in ("late", "30.00", "42.50", "reliability", "promised", "behind"):
        assert expected in text


@pytest.mark.parametrize(("counts", "counted"), [("completed", 2), ("selected", 4)])
def test_a_history_counts_the_same_turns_as_the_certificate(tmp_path: Path, counts: str, counted: int) -> None:
    path = tmp_path / "fleet.turnout"
    settings = {"cohort_size": 1, "guaranteed_rate": 0.5, "counts": counts}
    with Scheduler.open(path, policy="rbcsf", settings=settings, deadline=9.0) as scheduler:
        for outcome in ("arrived", "failed", "arrived", "late", "pending"):
            scheduler.choose({"a": status_of(1)})
            if outcome == "arrived":
                scheduler.report("a", 2.0)
            if outcome == "failed":
                scheduler.report_failure("a", "battery empty")
            if outcome != "pending":
                scheduler.close_round()
        assert scheduler.certificate().turns.tolist() == [counted]
    assert f"selected 5 times, of which {counted} count as turns" in output_of("history", path, "a")
    assert f"got {counted}," in output_of("history", path, "a")
    assert json_of("history", path, "a")["counted"] == counted


def test_a_history_as_json_has_every_turn(file: Path) -> None:
    history = json_of("history", file, "phone-05")
    with FleetReader(file) as scheduler:
        turns = scheduler.history("phone-05")
        fleet = scheduler.state().fleet
        assert history["reliability"] == fleet.history.reliability[fleet.rows["phone-05"]]
    assert [turn["round"] for turn in history["turns"]] == [turn.round for turn in turns]
    first = history["turns"][0]
    assert (first["outcome"], first["seconds"], first["late_seconds"]) == ("late", 30.0, 42.5)


def test_a_history_shows_losses_if_any_was_reported(file: Path, tmp_path: Path) -> None:
    assert "loss" not in output_of("history", file, "phone-05")
    assert {turn["loss"] for turn in json_of("history", file, "phone-05")["turns"]} == {None}
    path = tmp_path / "losses.turnout"
    with Scheduler.open(path, settings={"cohort_size": 1}, deadline=30.0) as scheduler:
        for loss in (0.62519, None, -1e-9):
            scheduler.choose({"a": status_of(1)})
            scheduler.report("a", 5.0, loss=loss)
            scheduler.close_round()
        scheduler.choose({"a": status_of(1)})
        scheduler.close_round()
        scheduler.report("a", 31.0, loss=0.5, round=4)
        scheduler.choose({"a": status_of(1)})
    lines = [[cell.strip() for cell in line[1:-1].split("│")] for line in output_of("history", path, "a").splitlines()]
    assert [line[3] for line in lines if line[0].isdecimal()] == ["0.6252", "", "-1e-09", "0.5", ""]
    assert "loss" in output_of("history", path, "a")
    assert [turn["loss"] for turn in json_of("history", path, "a")["turns"]] == [0.62519, None, -1e-9, 0.5, None]


def test_a_fleet_declares_signals_and_its_history_shows_them(tmp_path: Path) -> None:
    path = tmp_path / "signals.turnout"
    output_of("create", path, "--signals", "{utility = [0, 100]}", "--policy", "fair-pace:value=utility")
    with Scheduler.open(path) as scheduler:
        scheduler.choose({"a": status_of(1)})
        scheduler.report("a", 5.0, signals={"utility": 3.25})
        scheduler.close_round()
    lines = [[cell.strip() for cell in line[1:-1].split("│")] for line in output_of("history", path, "a").splitlines()]
    assert [line[3] for line in lines if len(line) > 3] == ["3.25"]
    assert json_of("amend", path, "--signals", "{utility = [0, 5]}")["changes"] == {"signals": {"utility": [0.0, 5.0]}}


# export


def test_an_export_has_every_event_as_a_line_of_json(file: Path, tmp_path: Path) -> None:
    shown, out = output_of("export", file), tmp_path / "audit.jsonl"
    with FleetReader(file) as scheduler:
        assert [json.loads(line) for line in shown.splitlines()] == list(scheduler.export())
    out.write_text("older")
    assert output_of("export", file, "--out", out) == ""
    assert out.read_text() == shown
    assert not list(tmp_path.glob(".audit*"))


def test_a_failed_export_leaves_the_old_file(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.jsonl"
    out.write_text("older")
    alter(file, "UPDATE events SET data = x'00' WHERE seq = 20")
    assert run("export", file, "--out", str(out)).returncode == 2
    assert out.read_text() == "older"
    assert not list(tmp_path.glob(".audit*"))


def test_an_export_does_not_overwrite_the_fleet(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    assert "is the fleet itself" in error_of("export", file, "--out", str(file))
    assert file.read_bytes() == before
    assert "must end in .jsonl" in error_of("export", file, "--out", tmp_path / "audit.xlsx")
    output_of("export", file, "--out", tmp_path / "nowhere" / "audit.jsonl")
    assert (tmp_path / "nowhere" / "audit.jsonl").read_text() == output_of("export", file)


# doctor


def test_an_intact_file_passes_the_doctor(file: Path) -> None:
    text = output_of("doctor", file)
    assert text.endswith("The fleet is intact.\n")
    assert "DAMAGED" not in text
    findings = json_of("doctor", file)
    assert findings["ok"] is True
    assert {"part", "ok", "message", "remedy"} == findings["findings"][0].keys()


def test_a_damaged_file_exits_with_code_one_and_a_remedy(file: Path) -> None:
    alter(file, "UPDATE turns SET why = '[bold]x' WHERE why IS NOT NULL")
    done = run("doctor", file)
    assert (done.returncode, done.stderr) == (1, "")
    assert "DAMAGED" in done.stdout
    assert "To do: restore the file from a backup.\nThe fleet is damaged.\n" in done.stdout
    findings = json.loads(run("doctor", file, "--json").stdout)
    assert next(finding["part"] for finding in findings["findings"] if finding["ok"] is False) == "turns"


# All of them


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fleet_in_use_can_be_read(file: Path, command: tuple[str, ...]) -> None:
    with Scheduler.open(file) as scheduler:
        for _ in range(2):
            done = run(command[0], file, *command[1:])
            broken = command[0] == "certify" and scheduler.certificate().status == "broken"
            assert (done.stderr, done.returncode) == ("", int(broken))
            if scheduler.open_round is not None:
                scheduler.close_round()


@pytest.mark.parametrize("command", COMMANDS[:4])
def test_a_damaged_fleet_prints_one_line_and_exits_with_code_two(file: Path, command: tuple[str, ...]) -> None:
    file.write_bytes(file.read_bytes()[:20_000])
    assert "damaged" in error_of(command[0], file, *command[1:])


def test_texts_of_clients_cannot_control_the_terminal(odd: Path) -> None:
    every = [output_of("status", odd), run("certify", odd).stdout, output_of("history", odd, "two\nlines")]
    assert not any("\x1b" in text or "\x07" in text for text in every)
    assert r"\x1b[31mred until round 2, inclusive" in every[0]
    assert r"two\nlines" in every[1]
    assert "[bold]fat[/bold]" in every[1]
    assert r"\x1b]0;title\x07 [/nothing]" in every[2]


def test_a_fleet_with_computed_features_can_be_read_without_them(tmp_path: Path) -> None:
    path = tmp_path / "own.turnout"
    features = Features.of(
        Feature("load", 0.1, 10), compute=lambda known: (known["load"], 1 / known["load"]), outputs=2
    )
    with Scheduler.open(path, features=features, settings=SETTINGS, deadline=9.0) as scheduler:
        play_round(scheduler, {f"phone-{n:02}": {"load": 1.0 + n} for n in range(6)}, 2.0)
    for command, *rest in COMMANDS:
        output_of(command, path, *rest)


def test_a_closed_pipe_is_no_error(file: Path) -> None:
    command = f"{sys.executable} -m turnout fleet export {file} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["event"] == 1
    assert "Traceback" not in done.stderr
