"""The static files of the dashboard, read once; no other file can be requested."""

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
    """The content of a file, its media type, and an entity tag that changes with the content."""

    data: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Returns the files by name: those of this package, and Plotly's script from its Python package."""
    files = {
        file.name: _page_file(file.name, file.read_bytes())
        for file in resources.files("turnout.dashboard").joinpath("static").iterdir()
        if Path(file.name).suffix in _TYPES
    }
    try:
        script = resources.files("plotly").joinpath("package_data", PLOTLY).read_bytes()
    except (ModuleNotFoundError, OSError) as error:
        raise SettingError(
            f"the charts need Plotly's script, which was not found ({error}): pip install 'turnout[dashboard]'"
        ) from error
    return {**files, PLOTLY: _page_file(PLOTLY, script)}


def _page_file(name: str, data: bytes) -> PageFile:
    media_type = _TYPES[Path(name).suffix]
    return PageFile(data, f"{media_type}; charset=utf-8", f'"{hashlib.sha256(data).hexdigest()[:20]}"')
