from __future__ import annotations

import re
from pathlib import Path

from release.readme import NOTE, long_description

ROOT = Path(__file__).parents[2]
README = """# Title

[Docs](docs/README.md) · [limits](#limits) · [paper](https://doi.org/1) · [docs/a.md](docs/a.md)

![A chart](docs/chart.png)

```python
rows[order](docs)
```

See [the end](docs/b.md#end).
"""


def test_with_a_repository_links_and_pictures_lead_to_the_tag_of_the_version() -> None:
    text = long_description(README, repository="https://host.invalid/turnout/", version="1.2")
    assert "[Docs](https://host.invalid/turnout/blob/v1.2/docs/README.md)" in text
    assert "![A chart](https://host.invalid/turnout/raw/v1.2/docs/chart.png)" in text
    assert "[the end](https://host.invalid/turnout/blob/v1.2/docs/b.md#end)" in text
    assert "[limits](#limits) · [paper](https://doi.org/1)" in text
    assert "```python\nrows[order](docs)\n```" in text
    assert NOTE not in text


def test_without_a_repository_links_become_names_of_files() -> None:
    text = long_description(README, repository=None, version="1.2")
    assert "Docs (`docs/README.md`) · [limits](#limits) · [paper](https://doi.org/1) · `docs/a.md`\n" in text
    assert "\n*A chart* (`docs/chart.png`)\n" in text
    assert "```python\nrows[order](docs)\n```" in text
    assert "See the end (`docs/b.md`).\n" in text
    assert text.endswith(f"\n\n{NOTE}\n")


def test_the_readme_has_no_relative_link_on_a_package_index() -> None:
    for repository in (None, "https://host.invalid/turnout"):
        text = long_description((ROOT / "README.md").read_text(), repository=repository, version="1.2")
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert [
            target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith(("https://", "#"))
        ] == []
        assert not re.search(r"<(img|a) ", text)
