"""Replay: what another policy would have selected in the recorded rounds of a fleet or a run."""
