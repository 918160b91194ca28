"""Changes the relative links of a page, which are written for GitHub, so that they lead somewhere in the site too.

Pages are linked as pages, also those outside docs/. All other files outside docs/, and all folders, are linked
with the scheme `tree:` and their path in the repository; the extension `tree` shows them in pages of their own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from docs._extensions.places import DOCS, ROOT, ROOT_PAGES

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```", flags=re.MULTILINE)


def relink(text: str, source: Path, page: Path) -> str:
    """Returns the text of a page with links that work in the site.

    Args:
        text: The Markdown text.
        source: The file that the text was written in.
        page: The file that Sphinx reads.
    """
    lines, is_code = text.split("\n"), False
    for number, line in enumerate(lines):
        if FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            lines[number] = LINK.sub(lambda found: f"]({_relinked(found[1], source, page)})", line)
    return "\n".join(lines)


def _relinked(target: str, source: Path, page: Path) -> str:
    name, sign, heading = target.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return target
    path = Path(os.path.normpath(source.parent / name))
    if path.is_dir() and (path / "README.md").is_file():
        path /= "README.md"
    if not path.is_relative_to(ROOT) or not path.exists():
        return target  # Sphinx refuses it
    name = path.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        path = DOCS / ROOT_PAGES[name]
    elif path.is_dir() or not path.is_relative_to(DOCS):
        return f"tree:{name}"
    return f"{Path(os.path.relpath(path, page.parent)).as_posix()}{sign}{heading}"
