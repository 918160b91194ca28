"""Checks at import time that a supported version of Flower is installed."""

from __future__ import annotations

from turnout.adapters.common.requirement import require_framework

OLDEST = (1, 22)  # the first version with a complete Message API

require_framework("flwr", "Flower", OLDEST, "pip install 'turnout[flower]', or 'turnout[flower-sim]' to simulate")
