from __future__ import annotations

import functools
import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli import in_process
from turnout.lab.training.datasets import SOURCES
from turnout.lab.training.files import DataFile, Files

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FASHION = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def run(*arguments: str, data: Path) -> in_process.Done:
    """Runs `turnout data` with this data folder."""
    return in_process.run("data", *arguments, TURNOUT_DATA=str(data), no_proxy="*", COLUMNS="400")


def error_of(*arguments: str, data: Path) -> str:
    return in_process.error_of("data", *arguments, TURNOUT_DATA=str(data), no_proxy="*")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Yields a folder and the URL that serves it."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_the_list_has_every_dataset_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "cifar-10").mkdir()
    (tmp_path / "cifar-10" / "test_batch.bin").write_bytes(b"")
    fashion = str(DEBIAN) if DEBIAN.is_dir() else "missing: turnout data fetch fashion-mnist"
    for data, cifar in ((tmp_path, str(tmp_path / "cifar-10")), (tmp_path / "none", "turnout data fetch cifar-10")):
        shown = run("list", data=data).stdout
        for text in ("digits", "CC BY 4.0", "with the package", "CIFAR-10", fashion, cifar):
            assert text in shown


def test_a_complete_dataset_is_verified_and_not_downloaded(tmp_path: Path) -> None:
    assert "did you mean 'digits'?" in error_of("fetch", "digit", data=tmp_path)
    shown = run("fetch", "digits", data=tmp_path).stdout
    assert shown == "digits is complete, with the package: 1,437 training and 360 test images\n"


def test_a_dataset_is_downloaded_from_another_url_into_a_folder(
    tmp_path: Path, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    (folder / "apples.gz").write_bytes(gzip.compress(b"red and green"))
    files = Files("fruit", (DataFile("apples", hashlib.sha256(b"red and green").hexdigest()),), "http://fruit.invalid/")
    content = SOURCES["digits"].parse({})
    fruit = replace(SOURCES["digits"], name="fruit", files=files, parse=lambda _: content)
    monkeypatch.setattr("turnout.lab.training.datasets.SOURCES", {"fruit": fruit})
    target = tmp_path / "basket"
    target.mkdir()
    (target / "apples").write_bytes(b"damaged")
    arguments = ("fetch", "fruit", "--address", address, "--folder", str(target))
    message = f"fruit is complete, in {target}: 1,437 training and 360 test images\n"
    assert run(*arguments, data=tmp_path) == (message, "", 0)
    assert [path.name for path in target.iterdir()] == ["apples"]
    assert (target / "apples").read_bytes() == b"red and green"
    (folder / "apples.gz").unlink()
    assert run(*arguments, data=tmp_path).stdout == message


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist_is_downloaded_and_found(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, address = served
    for name in FASHION:
        (folder / f"{name}.gz").symlink_to(DEBIAN / f"{name}.gz")
    target = tmp_path / "data" / "fashion-mnist"
    target.mkdir(parents=True)
    (target / FASHION[0]).write_bytes(b"damaged")  # it is found before Debian's
    done = run("fetch", "fashion-mnist", "--address", address, data=tmp_path / "data")
    counts = "60,000 training and 10,000 test images"
    assert done.stdout == f"fashion-mnist is complete, in {target}: {counts}\n", done.stderr
    assert done.stderr == ""
    assert sorted(path.name for path in target.iterdir()) == sorted(FASHION)


def test_a_failed_download_prints_one_line_and_leaves_no_file(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, address = served
    target = tmp_path / "target"
    arguments = ("fetch", "fashion-mnist", "--folder", str(target), "--address")
    assert "File not found" in error_of(*arguments, address, data=tmp_path)
    for name in FASHION:
        (folder / f"{name}.gz").write_bytes(gzip.compress(b"something else"))
    assert "it was not kept" in error_of(*arguments, address, data=tmp_path)
    assert "is not a web address" in error_of(*arguments, f"file://{folder}/", data=tmp_path)
    assert "cannot download" in error_of(*arguments, "http://127.0.0.1:port", data=tmp_path)
    assert list(target.iterdir()) == []
