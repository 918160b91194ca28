"""docs/operating.md has every metric of the service and of the dashboard, with its type."""

from __future__ import annotations

import re
from pathlib import Path

from dashboard.readings import FOREVER
from documents import ROOT
from service.served import ROUNDS, SLOTS, served
from turnout.dashboard.views.system import metrics
from turnout.dashboard.watch import Watch
from turnout.live import Scheduler
from turnout.web.prometheus import metrics_text

ROW = re.compile(
    r"^\| `(turnout_\w+)` \| (gauge|counter|histogram) \| (both|dashboard|service) \| .+ \|$", re.MULTILINE
)


def listed(*pages: str) -> dict[str, str]:
    """Returns the types of the metrics that docs/operating.md lists for these pages."""
    matches = ROW.findall((ROOT / "docs/operating.md").read_text())
    assert len({name for name, *_ in matches}) == len(matches)
    return {name: kind for name, kind, page in matches if page in pages}


def types(text: str) -> dict[str, str]:
    """Returns the types of the metrics of a page."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))


def test_the_metrics_of_the_service_are_listed(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": ROUNDS, "other": SLOTS}) as service:
        service.ok("/rounds", {"clients": ["phone-1", "phone-2"]})
        service.ok("/reports/batch", {"reports": [{"client": "phone-1", "seconds": 5.0}]})
        own = types(service.send("GET", "/metrics").body.decode())
        other = types(service.send("GET", "/metrics", fleet="other").body.decode())
    assert own | other == listed("both", "service")


def test_the_metrics_of_the_dashboard_are_listed(tmp_path: Path) -> None:
    path, settings = tmp_path / "rounds.turnout", {"cohort_size": 2}
    with Scheduler.open(path, policy="rbcsf", settings=settings, deadline=60.0) as rounds:
        rounds.report_many(dict.fromkeys(rounds.choose(["a", "b", "c"]), 5.0))
        rounds.close_round()
        rounds.choose(["a", "b", "c"])
    with Scheduler.open(tmp_path / "slots.turnout", deadline=60.0, **SLOTS) as slots:
        slots.fill(["a", "b", "c"])
        slots.report(1, 5.0)
        slots.fill(["a", "b", "c"])
    results: dict[str, str] = {}
    for path in (rounds.path, slots.path):
        watch = Watch(path)
        with watch.locked_source() as source:
            source.catch_up(FOREVER)
            results |= types(metrics_text(metrics(watch)))
        watch.stop()
    assert results == listed("both", "dashboard")
