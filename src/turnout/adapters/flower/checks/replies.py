"""Decides which replies of a round can be aggregated together; every other reply is a failure of its client."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from turnout.adapters.common import models as common
from turnout.adapters.flower.core.parts import Judge

NUMPY = "numpy.ndarray"  # Flower's name of the format of np.save
BYTES = ("uint8", "int8")  # one-dimensional arrays of these types hold serialized objects, such as trees
Shapes = tuple[tuple[str, tuple[int, ...] | None], ...]


def model_problem(arrays: ArrayRecord, before: Callable[[], Iterable[ArrayRecord]]) -> str | None:
    """Returns why a model cannot be used, or None; arrays in another format than that of np.save are not checked."""
    return common.model_problem(arrays, before, _values)


def _values(array: Array) -> npt.NDArray[Any] | None:
    """Returns the values of an array: a view of its bytes if these begin as np.save writes them, which is quick."""
    if array.stype != NUMPY:
        return None
    shape = tuple(array.shape)
    header, dtype = _header(array.dtype, shape)
    if array.data.startswith(header) and len(array.data) == len(header) + math.prod(shape) * dtype.itemsize:
        return np.frombuffer(array.data, dtype, offset=len(header))
    values = array.numpy()  # for example in Fortran order
    if values.shape != shape or values.dtype != dtype:
        raise ValueError(f"it is declared as {array.dtype} {shape}, but is {values.dtype} {values.shape}")
    return values


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, np.dtype[Any]]:
    """Returns what np.save writes before the values of an array of this type and shape."""
    described, stream = np.dtype(dtype), io.BytesIO()
    if described.hasobject:
        raise ValueError("it contains Python objects")
    descr = np.lib.format.dtype_to_descr(described)
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue(), described


@dataclass(frozen=True, slots=True)
class Form:
    """What replies must have in common: the shapes of their arrays by record, and the names of their metrics.

    `arrays` is None if there is one record, with the shapes of the message that was sent, or if neither has arrays.
    `has_model` says whether one of several records has these shapes.
    """

    arrays: tuple[tuple[str, Shapes], ...] | None
    metrics: tuple[tuple[str, tuple[str, ...]], ...]
    has_model: bool

    def difference(self, other: Form | None) -> str:
        """Returns in what a reply of this form differs from the form that was expected; None: that of the model."""
        if other is not None and self.metrics != other.metrics:
            return f"its metrics are {_names(self.metrics)}, those of the other replies {_names(other.metrics)}"
        if other is None or other.arrays is None:
            return f"its arrays are {_shapes(self.arrays)}, which are not those of the model that was sent"
        return f"its arrays are {_shapes(self.arrays)}, those of the other replies {_shapes(other.arrays)}"


class ReplyJudge(Judge):
    """Judges the replies of each round as they arrive.

    A reply is refused if its arrays or its weight are not finite, or if its form differs from that of the others. That
    form is the usual one of earlier rounds as soon as one reply has it; otherwise the form of more than half of the
    replies that the round needs, or, when no more replies are awaited, the most frequent one. Replies without the
    arrays of the model that was sent are accepted only if several have the same and no reply ever had those of the
    model.

    Args:
        weight_key: the metric by which the strategy weights replies; None if it does not.
        needed: the number of replies that a round needs.
    """

    def __init__(self, weight_key: str | None, needed: int = 1) -> None:
        super().__init__()
        self.weight_key, self.needed = weight_key, needed
        self._usual: Form | None = None  # of the replies so far
        self._sent: tuple[RecordDict, list[Shapes]] | None = None  # all messages of a round have the same content
        self._undecided: dict[str, Form] = {}

    def add(self, key: str, sent: RecordDict, reply: RecordDict) -> str | None:
        """Adds a reply; returns what is wrong with its content, or None."""
        problem = self._problem(sent, reply)
        if problem is None:
            if self._sent is None or self._sent[0] is not sent:
                arrays = [record for record in sent.values() if isinstance(record, ArrayRecord)]
                self._sent = sent, [_record_shapes(record) for record in arrays]
            self._undecided[key] = _form(self._sent[1], reply)
        return problem

    def settle(self, *, is_final: bool) -> tuple[list[str], dict[str, str]]:
        """Returns the clients whose replies are accepted, and why others are refused, since the last call."""
        form, self._sent = self._expected_form(is_final), None
        if form is None and not is_final:
            return [], {}
        self._usual = form or self._usual
        accepted = [client for client, other in self._undecided.items() if other == form]
        refused = {client: other.difference(form) for client, other in self._undecided.items() if other != form}
        self._undecided.clear()
        return accepted, refused

    def _expected_form(self, is_final: bool) -> Form | None:
        counts = Counter(self._undecided.values())
        if self._usual is not None and self._usual in counts:
            return self._usual
        knows_model = (self._usual is not None and self._usual.has_model) or any(form.has_model for form in counts)
        eligible = [form for form, count in counts.items() if form.has_model or (not knows_model and count > 1)]
        if not eligible:
            return None
        form = max(eligible, key=lambda form: (counts[form], len(_names(form.metrics))))
        return form if is_final or 2 * counts[form] > self.needed else None

    def _problem(self, sent: RecordDict, reply: RecordDict) -> str | None:
        key, weights = self.weight_key, []
        for record in reply.values():
            if isinstance(record, ArrayRecord):
                problem = model_problem(record, lambda: sent.array_records.values())
                if problem is not None:
                    return problem
            elif isinstance(record, MetricRecord) and key in record:
                weights.append(record[str(key)])
        if key is None:
            return None
        if len(weights) != 1:
            return f"its metrics have no {key!r}" if not weights else f"it has several metrics {key!r}"
        if isinstance(weights[0], list) or not math.isfinite(weights[0]) or weights[0] < 0:
            return f"its metric {key!r} must be a number that is not negative, got {weights[0]!r}"
        return None


def _form(expected: Sequence[Shapes], reply: RecordDict) -> Form:
    """Returns the form of the reply to a message whose model has these shapes."""
    arrays, metrics = [], []
    for name, record in reply.items():
        if isinstance(record, ArrayRecord):
            arrays.append((name, _record_shapes(record)))
        elif isinstance(record, MetricRecord):
            metrics.append((name, tuple(sorted(record))))
    has_model = any(shapes in expected for _, shapes in arrays) if arrays else not expected
    is_as_sent = has_model and len(arrays) <= 1
    return Form(None if is_as_sent else tuple(sorted(arrays)), tuple(sorted(metrics)), has_model)


def _record_shapes(record: ArrayRecord) -> Shapes:
    """Returns the shape of each array; None for serialized objects, whose length differs."""
    return tuple(
        sorted(
            (name, None if array.dtype in BYTES and len(array.shape) == 1 else tuple(array.shape))
            for name, array in record.items()
        )
    )


def _names(metrics: tuple[tuple[str, tuple[str, ...]], ...]) -> list[str]:
    return [name for _, names in metrics for name in names]


def _shapes(arrays: tuple[tuple[str, Shapes], ...] | None) -> Mapping[str, object] | str:
    if arrays is None:
        return "those of the model that was sent"
    records = {name: {array: "bytes" if shape is None else shape for array, shape in shapes} for name, shapes in arrays}
    return records if len(records) > 1 else next(iter(records.values()), {})
