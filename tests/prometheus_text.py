"""Reads the text format 0.0.4 of Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|Inf|NaN)")


class Sample(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]


def parse_metrics(text: str) -> tuple[dict[str, str], dict[Sample, float]]:
    """Returns the type of each metric and the value of each sample; violations of the format are failures."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    with_help: set[str] = set()
    samples: dict[Sample, float] = {}
    family = ""
    for line in text.split("\n")[:-1]:
        assert line, "no empty lines"
        if line.startswith("# "):
            _, keyword, name, text_ = line.split(" ", 3)
            assert NAME.fullmatch(name)
            assert text_
            if keyword == "HELP":
                assert name not in with_help, "one help line per metric"
                with_help.add(name)
                family = name
            else:
                assert keyword == "TYPE"
                assert name == family, "the type follows the help line"
                assert name not in kinds
                assert text_ in ("counter", "gauge", "histogram", "summary", "untyped")
                kinds[name] = text_
            continue
        match = re.fullmatch(r"([^\s{]+)(?:\{(.*)\})? (\S+)", line)
        assert match, line
        name, inside, value = match.groups()
        is_part = kinds[family] == "histogram" and name.removeprefix(family) in ("_bucket", "_sum", "_count")
        assert name == family or is_part, "samples follow the type of their metric"
        labels = []
        while inside:
            label = LABEL.match(inside)
            assert label, line
            label_value = re.sub(r"\\(.)", lambda escaped: {"n": "\n"}.get(escaped[1], escaped[1]), label[2])
            labels.append((label[1], label_value))
            inside = inside[label.end() :].removeprefix(",")
        assert len({key for key, _ in labels}) == len(labels)
        assert NUMBER.fullmatch(value), line
        sample = Sample(name, tuple(sorted(labels)))
        assert sample not in samples, "samples must be unique"
        samples[sample] = float(value)
    assert with_help == set(kinds)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())
    return kinds, samples


def value_of(samples: dict[Sample, float], name: str, **labels: str) -> float:
    (value,) = (
        value for sample, value in samples.items() if sample.name == name and set(labels.items()) <= set(sample.labels)
    )
    return value
