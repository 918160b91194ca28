"""Statuses that clients report, values of the site configuration, and groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext

from adapters.nvflare.conftest import MakeJob
from adapters.nvflare.controllers import Averaging
from adapters.nvflare.in_process import Job, always
from adapters.nvflare.test_rounds import fedavg
from narrowing import known
from turnout.adapters.common import machine
from turnout.adapters.nvflare.rounds import HAS_SITE_CONFIG
from turnout.adapters.nvflare.status import STATUS, StatusReporter, read_status
from turnout.errors import SettingError
from turnout.live import Feature, Features, FleetReader

needs_site_config = pytest.mark.skipif(not HAS_SITE_CONFIG, reason="NVFlare has no site configuration before 2.9")


def first_contexts(fleet: str) -> dict[str, list[float]]:
    """Returns the contexts of the first offer, by client."""
    with FleetReader(Path(fleet)) as reader:
        offer = known(reader.offer(1))
        assert offer.contexts is not None
        ids = np.array(reader.clients)[np.flatnonzero(offer.available)]
        return dict(zip(ids.tolist(), offer.contexts.tolist(), strict=True))


def stored_groups(fleet: str) -> Any:
    with FleetReader(Path(fleet)) as reader:
        assert reader.settings.policy == "quota"
        return reader.settings.settings["groups"]


def turns(fleet: str) -> dict[str, int]:
    with FleetReader(fleet) as scheduler:
        return {client: len(scheduler.history(client)) for client in scheduler.clients}


# The server


def test_statuses_are_the_contexts_of_the_offer_also_without_a_selection(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(), b=always(), c=always())
    job.clients["a"].status = {"free_cpu": 4.0, "bandwidth": 10.0}
    job.clients["c"].status = {"free_cpu": 0.5, "bandwidth": 5.0}
    job.run(fedavg(fleet, num_clients=1, model_size=20.0))
    assert first_contexts(fleet) == {"a": [0.25, 1.0, 2.0], "b": [1.0, 1.0, 7.5], "c": [2.0, 1.0, 4.0]}


@pytest.mark.parametrize(
    "status",
    [{"free_cpu": -1.0, "bandwidth": 1.0}, {"free_cpu": "four", "bandwidth": 1.0}, {"free_cpu": 1.0}],
    ids=["out of range", "no number", "incomplete"],
)
def test_an_invalid_status_counts_as_unknown_with_a_warning(
    make_job: MakeJob, fleet: str, status: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(a=always(), b=always())
    job.clients["b"].status = status
    job.run(fedavg(fleet))
    assert first_contexts(fleet)["b"] == [1.0, 1.0, 7.5]
    assert "nothing is assumed to be known about it" in caplog.text


def test_without_defaults_a_client_of_unknown_status_is_excluded(
    make_job: MakeJob, fleet: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Battery(Averaging):
        features = Features.of(Feature("battery", 0.05, 1.0, "share"))

    job = make_job(a=always(), b=always())
    job.clients["a"].status, job.clients["b"].status = {"battery": 0.5}, {"battery": 7.0}
    job.run(Battery(num_clients=2, num_rounds=1, selection={"fleet": fleet, "deadline": 10}))
    assert first_contexts(fleet) == {"a": [0.5]}
    assert "excluded from this round: battery of 'b' must be from 0.05 to 1 share, got 7" in caplog.text


@needs_site_config
def test_values_of_the_site_configuration_take_precedence(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(), b=always())
    job.clients["a"].status = {"free_cpu": 1.0, "bandwidth": 10.0}
    job.clients["a"].client.set_site_config({"free_cpu": 8.0, "other": "text"})
    job.clients["b"].client.set_site_config({"free_cpu": 2.0, "bandwidth": 4.0})
    job.run(fedavg(fleet))
    assert first_contexts(fleet) == {"a": [0.125, 1.0, 2.0], "b": [0.5, 1.0, 5.0]}


# Groups


REGIONS = {"a": "north", "b": "north", "c": "south"}


def by_mapping(_: Job) -> Any:
    return REGIONS


def by_site_config(job: Job) -> Any:
    for client, group in REGIONS.items():
        job.clients[client].client.set_site_config({"region": group})
    return "region"


GROUPS = [by_mapping, pytest.param(by_site_config, marks=needs_site_config)]


@pytest.mark.parametrize("groups_of", GROUPS)
def test_only_eligible_groups_are_selected(make_job: MakeJob, fleet: str, groups_of: Any) -> None:
    job = make_job(a=always(), b=always(), c=always(), ungrouped=always())
    job.run(fedavg(fleet, groups=groups_of(job), eligible=["north"], num_rounds=5))
    assert turns(fleet) == {"a": 5, "b": 5}


@pytest.mark.parametrize("groups_of", GROUPS)
def test_a_quota_reserves_places_in_every_round_of_all_jobs(make_job: MakeJob, fleet: str, groups_of: Any) -> None:
    for _ in range(2):
        job = make_job(a=always(), b=always(), c=always(seconds=5))
        job.run(fedavg(fleet, groups=groups_of(job), quota={"south": 1}, num_rounds=5))
    assert turns(fleet)["c"] == 10
    assert stored_groups(fleet) == ["north", "north", "south"]


def test_a_client_that_joins_in_a_later_job_is_entered_into_its_group(make_job: MakeJob, fleet: str) -> None:
    make_job(a=always(), b=always(), c=always()).run(fedavg(fleet, groups=REGIONS, quota={"east": 1}, num_rounds=5))
    job = make_job(a=always(), b=always(), c=always(), d=always(seconds=5))
    job.run(fedavg(fleet, groups={**REGIONS, "d": "east"}, quota={"east": 1}, num_rounds=5))
    assert turns(fleet)["d"] == 5
    assert stored_groups(fleet) == ["north", "north", "south", "east"]


def test_groups_without_a_source_are_refused(fleet: str) -> None:
    for settings in ({"eligible": ["north"]}, {"quota": {"north": 1}}):
        with pytest.raises(SettingError, match="eligible and quota need groups"):
            fedavg(fleet, **settings)


def test_groups_of_the_site_configuration_need_nvflare_2_9(fleet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.adapters.nvflare.rounds.HAS_SITE_CONFIG", False)
    with pytest.raises(SettingError, match=r"needs NVFlare 2\.9 or newer"):
        fedavg(fleet, groups="region")


# The client


def report_with(reporter: StatusReporter) -> dict[str, Any] | None:
    """Returns what the server reads after the client has asked for work."""
    context = FLContext()
    reporter.handle_event(EventType.BEFORE_PULL_TASK, context)
    sent = FLContext()
    sent.set_public_props(json.loads(json.dumps(context.get_all_public_props())))
    return read_status(sent)


def test_the_reporter_sends_what_it_measures_or_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_cpu", lambda: 6.0)
    monkeypatch.setattr(machine, "bandwidth", lambda: 1000.0)
    assert report_with(StatusReporter()) == {"free_cpu": 6.0, "bandwidth": 1000.0}
    assert report_with(StatusReporter(free_cpu=2, bandwidth=50)) == {"free_cpu": 2.0, "bandwidth": 50.0}


def test_the_reporter_measures_from_the_start_of_the_job_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_samples", [])
    monkeypatch.setattr("time.sleep", pytest.fail)
    reporter = StatusReporter()
    reporter.handle_event(EventType.START_RUN, FLContext())
    assert len(machine._samples) == 1
    status = known(report_with(reporter))
    assert status["free_cpu"] >= machine.MIN_CPU


def test_a_failing_status_does_not_keep_the_client_from_working(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(StatusReporter):
        def status(self, _: FLContext) -> dict[str, float]:
            raise OSError("no sensor")

    assert report_with(Broken()) is None
    assert "could not be determined: OSError('no sensor')" in caplog.text


def test_whatever_a_client_sends_as_its_status_is_read_safely() -> None:
    wrong: tuple[Any, ...] = ("text", 5, None, [], {})
    for sent in wrong:
        context = FLContext()
        context.set_prop(STATUS, sent, private=False, sticky=False)
        assert read_status(context) is None
