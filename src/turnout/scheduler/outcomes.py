"""What becomes of an invited client: the kinds that the journal records, and what policies are told of each."""

from __future__ import annotations

import numpy as np

#: Surplus: the client came back after enough others had. Outrun: it was still out when enough others had come back,
#: which is no fault of its own. Late: it was still out when the round was closed without enough others.
KINDS = ("arrived", "surplus", "outrun", "late", "failed")
ARRIVED, SURPLUS, OUTRUN, LATE, FAILED = range(len(KINDS))
#: The client came back before the round was closed.
RETURNED = (KINDS[ARRIVED], KINDS[SURPLUS])
#: The client was out when the round was closed: its true time may still come.
STILL_OUT = (KINDS[OUTRUN], KINDS[LATE])
#: The client did not come back in time, which counts against its reliability.
MISSED = (KINDS[LATE], KINDS[FAILED])
#: The kernel's outcome of each kind, by index.
OUTCOME_OF_KIND = np.array(["arrived", "late", "late", "late", "failed"])
