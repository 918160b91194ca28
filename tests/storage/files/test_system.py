"""Atomic writes: the new content is on disk before it replaces the old one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnout.errors import SettingError
from turnout.storage.files import system
from turnout.storage.files.system import atomic_write


def test_the_content_is_flushed_to_disk_before_the_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed = tmp_path / "file", list[tuple[int, bytes]]()
    path.write_bytes(b"old")

    def record(descriptor: int) -> None:
        flushed.append((os.fstat(descriptor).st_size, path.read_bytes()))

    monkeypatch.setattr(system, "sync_file", record)
    with atomic_write(path) as file:
        file.write(b"new content")
    assert flushed == [(11, b"old")]
    assert path.read_bytes() == b"new content"


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(path: Path) -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], b"old")
    with pytest.raises(SettingError, match=r"cannot write .*nowhere/file: No such file"):
        write(tmp_path / "nowhere" / "file")
