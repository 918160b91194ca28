"""The alert rules and the Grafana dashboard of examples/monitoring use metrics that exist, with labels that match."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from dashboard.served import served_fleet
from documents import ROOT
from prometheus_text import parse_metrics
from test_metrics_page import listed

FOLDER = ROOT / "examples/monitoring"
#: The names that follow that of a histogram.
PARTS = re.compile(r"_(bucket|sum|count)$")
LABEL = re.compile(r"\b(\w+)=~?\"|(?:by|without) \(([\w, ]+)\)|\{\{(\w+)\}\}")
#: The labels of all pages, and those that Prometheus adds.
LABELS = {"policy", "run", "fleet", "outcome", "operation", "status", "why", "le", "instance", "job"}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def expressions() -> dict[str, str]:
    """Returns the expressions and legends of alerts and panels, by their names."""
    board = json.loads((FOLDER / "grafana.json").read_text())
    panels = {
        panel["title"]: " ".join(f"{target['expr']} {target['legendFormat']}" for target in panel["targets"])
        for panel in board["panels"]
    }
    return {rule["alert"]: rule["expr"] for rule in rules()} | panels


def test_every_expression_uses_metrics_and_labels_that_exist() -> None:
    known = set(listed("both", "dashboard", "service"))
    assert len(expressions()) > 25
    for name, expression in expressions().items():
        used = re.findall(r"\bturnout_\w+", expression)
        assert used, name
        assert {metric if metric in known else PARTS.sub("", metric) for metric in used} <= known, name
        labels = {label.strip() for found in LABEL.findall(expression) for part in found for label in part.split(",")}
        assert labels - {""} <= LABELS, name


def test_every_rule_has_a_severity_and_a_summary_and_is_explained() -> None:
    page = (ROOT / "docs/operating.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in page


def test_the_metrics_of_a_rule_that_compares_two_have_the_same_labels(tmp_path: Path) -> None:
    """Prometheus compares only samples with the same labels: otherwise a rule could never fire."""
    with served_fleet(tmp_path, 5) as server:
        _, samples = parse_metrics(server.get("/metrics").body.decode())
    compared = [set(re.findall(r"\bturnout_\w+", rule["expr"])) for rule in rules()]
    compared = [metrics for metrics in compared if len(metrics) > 1 and not any("turn" in name[8:] for name in metrics)]
    assert {"turnout_open_round_seconds", "turnout_deadline_seconds"} in compared
    for metrics in compared:
        labels = {sample.labels for sample in samples if sample.name in metrics}
        assert {sample.name for sample in samples} >= metrics
        assert len(labels) == 1, metrics
