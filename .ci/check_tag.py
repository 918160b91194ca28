"""Checks that everything about a release is there before it is published: python .ci/check_tag.py v0.2.0."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Returns what is missing or wrong for a release with this tag."""
    text = (root / "src/turnout/version.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)
    if version is None:
        return ["src/turnout/version.py has no version"]
    if tag != f"v{version[1]}":
        return [f"the tag is {tag}, but src/turnout/version.py has version {version[1]}"]
    found = []
    name = re.escape(version[1])
    heading = re.search(rf"^## {name} - (\d{{4}}-\d\d-\d\d)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if heading is None:
        found.append(f"CHANGELOG.md has no section with the heading ## {version[1]} - DATE")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {version[1]}\n" not in citation:
        found.append(f"CITATION.cff has another version than {version[1]}")
    if heading is not None and f"\ndate-released: {heading[1]}\n" not in citation:
        found.append(f"CITATION.cff has another date than CHANGELOG.md, {heading[1]}")
    return found


if __name__ == "__main__":
    if found := problems(sys.argv[1]):
        sys.exit("\n".join(found))
    print(f"{sys.argv[1]} can be released")
