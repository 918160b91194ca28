"""Outcomes of turns: the kinds that the journal records, and what is reported to policies for each."""

from __future__ import annotations

import numpy as np

#: "arrived": the update came in time. "redundant": it arrived after enough others. "cut_off": it had not arrived when
#: enough others had, which does not count as a miss. "late": it had not arrived when the round was closed without
#: enough updates. "failed": the client reported a failure.
KINDS = ("arrived", "redundant", "cut_off", "late", "failed")
#: The index of this outcome in `KINDS`.
ARRIVED, REDUNDANT, CUT_OFF, LATE, FAILED = range(len(KINDS))
#: The update arrived before the round was closed.
RETURNED = (KINDS[ARRIVED], KINDS[REDUNDANT])
#: The update had not arrived when the round was closed; its actual time may be reported later.
STILL_OUT = (KINDS[CUT_OFF], KINDS[LATE])
#: Misses, which lower the reliability of the client.
MISSED = (KINDS[LATE], KINDS[FAILED])
#: The outcome that is reported to the policy, by index of the kind.
OUTCOME_OF_KIND = np.array(["arrived", "late", "late", "late", "failed"])
