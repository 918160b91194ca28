"""Checks at import time that a supported version of NVFlare is installed."""

from __future__ import annotations

from turnout.adapters.common.requirement import require_framework

OLDEST = (2, 7)  # the first version with recipes

require_framework("nvflare", "NVFlare", OLDEST, "pip install 'turnout[nvflare]'")
