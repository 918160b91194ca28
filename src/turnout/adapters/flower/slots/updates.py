"""Moves updates of older models to the current one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, RecordDict

from turnout.adapters.flower.checks.arrays import NUMPY
from turnout.adapters.flower.checks.replies import BYTES
from turnout.errors import SettingError


def check_model(arrays: ArrayRecord) -> None:
    """Raises SettingError unless differences between models can be computed."""
    for name, array in arrays.items():
        if array.stype != NUMPY or (array.dtype in BYTES and len(array.shape) == 1):
            raise SettingError(
                f"the array {name!r} of the model holds serialized objects, and without rounds the difference between "
                "models must be computed: use a fleet with rounds"
            )


def rebase(content: RecordDict, sent: ArrayRecord, current: ArrayRecord, factor: float) -> None:
    """Replaces the model in a reply by the current one plus `factor` times what the client changed (FedBuff).

    A strategy that averages models, or compares them with the current one, then sees the update of the client and not
    the difference between the model that was sent and the current one. A record that does not have the arrays of the
    model is left as it is. Whole numbers are moved without the factor.

    Args:
        content: The content of the reply, which is changed.
        sent: The model that the client was sent.
        current: The current model.
        factor: The discount of the update.
    """
    for name, record in list(content.array_records.items()):
        if {key: array.shape for key, array in record.items()} == {key: array.shape for key, array in sent.items()}:
            content[name] = ArrayRecord(
                {key: Array(_moved(record[key], sent[key], current[key], factor)) for key in record}
            )


def _moved(trained: Array, sent: Array, current: Array, factor: float) -> npt.NDArray[Any]:
    new, old, now = trained.numpy(), sent.numpy(), current.numpy()
    if new.dtype.kind == "b":
        return new
    if new.dtype.kind in "iu":
        moved: npt.NDArray[Any] = now + (new - old)
    else:
        with np.errstate(invalid="ignore"):  # infinity, as in the mask of an attention layer, has no difference
            moved = now + factor * (new - old)
        moved = np.where(np.isfinite(moved), moved, new)
    return np.asarray(moved, dtype=new.dtype)
