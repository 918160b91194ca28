"""An adapter says at once that its framework is missing or too old."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
from pathlib import Path

import pytest

import turnout

FRAMEWORKS = {"flower": ("flwr", "Flower", "1.22"), "nvflare": ("nvflare", "NVFlare", "2.7")}


def check(adapter: str, monkeypatch: pytest.MonkeyPatch, installed: str | None) -> None:
    """Runs the check that an import of the adapter begins with; None: a build without metadata."""

    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    runpy.run_path(str(Path(turnout.__file__).parent / "adapters" / adapter / "requirement.py"))


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_a_missing_framework_names_the_extra(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'turnout\[{adapter}\]'") as error:
        check(adapter, monkeypatch, "99.0")
    assert error.value.name == FRAMEWORKS[adapter][0]


@pytest.mark.parametrize(
    ("adapter", "installed"),
    [*(("flower", version) for version in ("1.21.0", "1.9.0", "0.18.0")), ("nvflare", "2.6.3"), ("nvflare", "1.0.2")],
)
def test_a_version_that_is_too_old_is_refused(adapter: str, installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, title, oldest = FRAMEWORKS[adapter]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ImportError, match=f"{title} {installed} is too old: turnout needs {oldest} or newer"):
        check(adapter, monkeypatch, installed)


@pytest.mark.parametrize(
    ("adapter", "installed"),
    [
        *(("flower", version) for version in ("1.22.0", "1.41.0", "1.50.0.dev20270101", "2.0rc1", None)),
        *(("nvflare", version) for version in ("2.7.0", "2.10.1", "3.0.0rc1", "nightly", None)),
    ],
)
def test_later_versions_and_builds_without_metadata_are_accepted(
    adapter: str, installed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    check(adapter, monkeypatch, installed)
