from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy

import pytest

from turnout.adapters.nvflare import requirement


def check() -> None:
    """Runs the check that an import of the adapter begins with."""
    runpy.run_path(str(requirement.__file__))


def test_a_missing_nvflare_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'turnout\[nvflare\]'"):
        check()


@pytest.mark.parametrize("installed", ["2.6.3", "1.0.2"])
def test_an_old_nvflare_is_refused(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: installed)
    with pytest.raises(ImportError, match=f"NVFlare {installed} is too old: turnout needs 2.7 or newer"):
        check()


@pytest.mark.parametrize("installed", ["2.7.0", "2.10.1", "3.0.0rc1", "nightly"])
def test_later_versions_and_nightly_builds_are_accepted(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: installed)
    check()


def test_a_build_without_metadata_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    check()
    assert importlib.util.find_spec("nvflare") is not None
