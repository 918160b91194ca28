"""The files of the page, read once; nothing else of the disk can be asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from turnout.errors import SettingError

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PLOTLY = "plotly.min.js"


@dataclass(frozen=True, slots=True)
class PageFile:
    """Its bytes, what they are, and a mark that changes with them."""

    data: bytes
    media_type: str
    mark: str


@cache
def page_files() -> dict[str, PageFile]:
    """By name: our own, and Plotly's script from its Python package."""
    files = {
        one.name: _file(one.name, one.read_bytes())
        for one in resources.files("turnout.dashboard").joinpath("static").iterdir()
        if Path(one.name).suffix in _TYPES
    }
    try:
        script = resources.files("plotly").joinpath("package_data", PLOTLY).read_bytes()
    except (ModuleNotFoundError, OSError) as missing:
        raise SettingError(
            f"the charts need Plotly's script, which is not here ({missing}): pip install 'turnout[dashboard]'"
        ) from missing
    return {**files, PLOTLY: _file(PLOTLY, script)}


def _file(name: str, data: bytes) -> PageFile:
    kind = _TYPES[Path(name).suffix]
    return PageFile(data, f"{kind}; charset=utf-8", f'"{hashlib.sha256(data).hexdigest()[:20]}"')
