"""docs/start.md lists every extra of the package."""

from __future__ import annotations

import re
import tomllib

from documents import ROOT


def test_every_extra_is_listed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs/start.md").read_text()
    cells = re.findall(r"^\| (`[^|]+) \|", page.split("\n## Install\n")[1].split("\n## ")[0], flags=re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)} == set(extras)
