"""The text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MEDIA_TYPE = "text/plain; version=0.0.4"


def labels(**values: str) -> str:
    r"""Returns labels as they stand behind the name of a metric.

    >>> labels(fleet='a"b', run="1")
    '{fleet="a\\"b",run="1"}'
    """
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def metric_lines(name: str, help_text: str, kind: str, values: Mapping[str, float]) -> Iterator[str]:
    """Yields the lines of one metric, without line ends.

    Args:
        name: The name of the metric.
        help_text: What it measures.
        kind: "gauge" or "counter".
        values: Its values by labels; "" stands for none.
    """
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
    for label, value in values.items():
        short = float(value).is_integer() and abs(value) < 1e6
        yield f"{name}{label} {value:g}" if short else f"{name}{label} {float(value)!r}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
