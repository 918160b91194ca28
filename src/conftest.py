"""Doctests of adapters are collected only where the framework is installed."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("nvflare") is None:
    collect_ignore_glob = ["turnout/adapters/nvflare/*.py"]
