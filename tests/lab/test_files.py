from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError

import pytest

from turnout.errors import DatasetError
from turnout.lab.files import DataFile, Files, data_folder, fetch, find_folder, read_checked

CONTENTS = {"apples": b"red and green " * 50, "pears": bytes(range(256)) * 20}


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fruit(*, archive: str | None = None, places: tuple[str, ...] = ()) -> Files:
    files = tuple(DataFile(name, checksum(content)) for name, content in CONTENTS.items())
    return Files("fruit", files, "http://fruit.invalid/", archive, places)


def put(folder: Path, *, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def everything_under(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def packed_tar(*members: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture(autouse=True)
def _nobody_elses_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNOUT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


class Server:
    """A web server on this machine: what it offers, what it was asked for, and how it misbehaves."""

    def __init__(self) -> None:
        self.offered: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.fault = ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/")
                server.asked.append(name)
                if server.fault == "silent":
                    return
                if name not in server.offered:
                    self.send_error(404)
                    return
                content = server.offered[name]
                self.send_response(200)
                if server.fault == "broken chunk":
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.write(b"%x\r\n" % len(content) + content[: len(content) // 2])
                    return
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if server.fault == "short" else content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    started.offered = {f"{name}.gz": gzip.compress(content) for name, content in CONTENTS.items()}
    thread = threading.Thread(target=started.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield started
    started.http.shutdown()
    started.http.server_close()
    thread.join()


# Where they are


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_found_in_the_folder_that_is_given(tmp_path: Path, packed: bool) -> None:
    folder = put(tmp_path / "mine", packed=packed)
    assert find_folder(fruit(), folder) == folder
    assert read_checked(fruit(), folder) == CONTENTS


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_found_where_turnout_data_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path / "data"))
    folder = put(tmp_path / "data" / "fruit", packed=packed)
    assert find_folder(fruit()) == folder == data_folder("fruit")
    assert read_checked(fruit()) == CONTENTS


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_found_in_the_users_cache(tmp_path: Path, packed: bool) -> None:
    folder = put(tmp_path / "cache" / "turnout" / "fruit", packed=packed)
    assert find_folder(fruit()) == folder == data_folder("fruit")
    assert read_checked(fruit()) == CONTENTS


def test_without_any_setting_the_cache_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder("fruit") == tmp_path / ".cache" / "turnout" / "fruit"


def test_an_empty_setting_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_DATA", "")
    assert data_folder("fruit") == tmp_path / "cache" / "turnout" / "fruit"


def test_what_the_system_put_somewhere_is_found_last(tmp_path: Path) -> None:
    known = fruit(places=(str(put(tmp_path / "system", packed=True)),))
    assert find_folder(known) == tmp_path / "system"
    own = put(tmp_path / "cache" / "turnout" / "fruit")
    assert find_folder(known) == own


def test_a_given_folder_is_the_only_one_searched(tmp_path: Path) -> None:
    put(tmp_path / "cache" / "turnout" / "fruit")
    with pytest.raises(DatasetError, match="fruit was not found in"):
        read_checked(fruit(), tmp_path / "elsewhere")


# Whether they are whole


def test_a_missing_dataset_names_the_folders_and_the_files(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as told:
        read_checked(fruit(places=("/nowhere/fruit",)))
    for word in (str(data_folder("fruit")), "/nowhere/fruit", "download it", "apples", "pears"):
        assert word in str(told.value)
    assert told.value.dataset == "fruit"
    assert everything_under(tmp_path) == {}


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "pears").unlink()
    with pytest.raises(DatasetError) as told:
        read_checked(fruit(), tmp_path)
    for word in ("pears", str(tmp_path), "download it"):
        assert word in str(told.value)
    assert told.value.dataset == "fruit"
    assert "apples" not in str(told.value)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("pears", flipped(CONTENTS["pears"]), id="a flipped bit"),
        pytest.param("pears", CONTENTS["pears"][:-1], id="a lost byte"),
        pytest.param("pears", b"", id="an empty file"),
        pytest.param("pears.gz", gzip.compress(CONTENTS["pears"])[:-20], id="a truncated gz"),
        pytest.param("pears.gz", flipped(gzip.compress(CONTENTS["pears"])), id="a flipped bit in a gz"),
        pytest.param("pears.gz", gzip.compress(b"plums"), id="other content in a gz"),
        pytest.param("pears.gz", CONTENTS["pears"], id="no gz at all"),
    ],
)
def test_damage_is_told_with_the_file_its_checksum_and_what_to_do(tmp_path: Path, name: str, content: bytes) -> None:
    put(tmp_path)
    (tmp_path / "pears").unlink()
    (tmp_path / name).write_bytes(content)
    before = everything_under(tmp_path)
    with pytest.raises(DatasetError) as told:
        read_checked(fruit(), tmp_path)
    for word in (str(tmp_path / name), checksum(CONTENTS["pears"]), "delete it and download it again"):
        assert word in str(told.value)
    assert told.value.dataset == "fruit"
    assert everything_under(tmp_path) == before


# How to get them


def test_files_are_fetched_one_by_one(tmp_path: Path, server: Server) -> None:
    assert fetch(fruit(), tmp_path / "new" / "fruit", address=server.address) == tmp_path / "new" / "fruit"
    assert everything_under(tmp_path / "new" / "fruit") == CONTENTS
    assert server.asked == ["apples.gz", "pears.gz"]


def test_files_are_fetched_into_the_users_cache_and_found_there(server: Server) -> None:
    assert fetch(fruit(), address=server.address) == data_folder("fruit")
    assert read_checked(fruit()) == CONTENTS


def test_the_official_home_is_asked_unless_another_is_given(tmp_path: Path, server: Server) -> None:
    at_home = Files("fruit", fruit().files, server.address)
    assert everything_under(fetch(at_home, tmp_path)) == CONTENTS


def test_an_address_may_end_without_a_slash(tmp_path: Path, server: Server) -> None:
    assert everything_under(fetch(fruit(), tmp_path, address=server.address.rstrip("/"))) == CONTENTS


def test_whoever_watches_hears_of_every_byte(tmp_path: Path, server: Server) -> None:
    heard: list[int] = []
    fetch(fruit(), tmp_path, address=server.address, watch=heard.append)
    assert sum(heard) == sum(map(len, server.offered.values()))


def test_an_archive_is_fetched_once_and_its_subfolder_does_not_matter(tmp_path: Path, server: Server) -> None:
    members = [(f"fruit-1.0/deep/{name}", content) for name, content in CONTENTS.items()]
    server.offered["fruit.tar.gz"] = packed_tar(*members)
    fetch(fruit(archive="fruit.tar.gz"), tmp_path, address=server.address)
    assert everything_under(tmp_path) == CONTENTS
    assert server.asked == ["fruit.tar.gz"]


def test_only_what_is_expected_is_unpacked(tmp_path: Path, server: Server) -> None:
    evil = [("../evil", b"evil"), ("/tmp/turnout-evil", b"evil"), ("fruit/extra", b"extra"), ("../../apples.sh", b"")]
    members = [(f"../fruit/{name}", content) for name, content in CONTENTS.items()]
    server.offered["fruit.tar.gz"] = packed_tar(*evil, *members)
    fetch(fruit(archive="fruit.tar.gz"), tmp_path / "outer" / "inner", address=server.address)
    assert everything_under(tmp_path / "outer" / "inner") == CONTENTS
    assert {path.name for path in (tmp_path / "outer").iterdir()} == {"inner"}
    assert {path.name for path in tmp_path.iterdir()} == {"outer"}
    assert not Path("/tmp/turnout-evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_plain_file_is_not_followed(tmp_path: Path, server: Server, kind: bytes) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        hidden = tarfile.TarInfo("hidden")
        hidden.size = len(CONTENTS["apples"])
        archive.addfile(hidden, io.BytesIO(CONTENTS["apples"]))
        link = tarfile.TarInfo("apples")
        link.type, link.linkname = kind, "hidden"
        archive.addfile(link)
        pears = tarfile.TarInfo("pears")
        pears.size = len(CONTENTS["pears"])
        archive.addfile(pears, io.BytesIO(CONTENTS["pears"]))
    server.offered["fruit.tar.gz"] = packed.getvalue()
    with pytest.raises(DatasetError, match="holds no apples: nothing was kept"):
        fetch(fruit(archive="fruit.tar.gz"), tmp_path, address=server.address)
    assert everything_under(tmp_path) == {}


def test_a_link_that_lies_in_the_folder_is_replaced_and_not_written_through(tmp_path: Path, server: Server) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    folder = tmp_path / "fruit"
    folder.mkdir()
    (folder / "apples").symlink_to(precious)
    fetch(fruit(), folder, address=server.address)
    assert precious.read_bytes() == b"precious"
    assert everything_under(folder) == CONTENTS


def test_an_archive_with_other_content_is_not_kept(tmp_path: Path, server: Server) -> None:
    server.offered["fruit.tar.gz"] = packed_tar(("apples", b"plums"), ("pears", b"plums"))
    with pytest.raises(DatasetError) as told:
        fetch(fruit(archive="fruit.tar.gz"), tmp_path, address=server.address)
    for word in ("apples", checksum(b"plums"), checksum(CONTENTS["apples"]), "not kept"):
        assert word in str(told.value)
    assert everything_under(tmp_path) == {}


@pytest.mark.parametrize("archive", [b"", b"no archive", gzip.compress(b"no archive", mtime=0), b"cut short"])
def test_a_damaged_archive_is_told_and_nothing_kept(tmp_path: Path, server: Server, archive: bytes) -> None:
    whole = packed_tar(*CONTENTS.items())
    server.offered["fruit.tar.gz"] = whole[: len(whole) // 2] if archive == b"cut short" else archive
    with pytest.raises(DatasetError, match="nothing was kept"):
        fetch(fruit(archive="fruit.tar.gz"), tmp_path, address=server.address)
    assert everything_under(tmp_path) == {}


def test_a_file_with_a_wrong_checksum_is_not_kept(tmp_path: Path, server: Server) -> None:
    server.offered["apples.gz"] = gzip.compress(b"plums")
    with pytest.raises(DatasetError) as told:
        fetch(fruit(), tmp_path, address=server.address)
    for word in ("apples", server.address, checksum(b"plums"), checksum(CONTENTS["apples"]), "not kept"):
        assert word in str(told.value)
    assert everything_under(tmp_path) == {}


def test_what_is_no_gzip_file_is_not_kept(tmp_path: Path, server: Server) -> None:
    server.offered["apples.gz"] = b"<html>Please log in</html>"
    with pytest.raises(DatasetError, match=r"apples\.gz is not a gzip file .*: nothing was kept"):
        fetch(fruit(), tmp_path, address=server.address)
    assert everything_under(tmp_path) == {}


@pytest.mark.parametrize(
    ("fault", "why"),
    [("short", "bytes too early"), ("broken chunk", "IncompleteRead"), ("silent", "without response")],
)
def test_an_interrupted_download_is_told_and_nothing_kept(tmp_path: Path, server: Server, fault: str, why: str) -> None:
    server.fault = fault
    with pytest.raises(DatasetError, match=f"cannot download {server.address}apples.gz: .*{why}"):
        fetch(fruit(), tmp_path, address=server.address)
    assert everything_under(tmp_path) == {}
    server.fault = ""
    assert everything_under(fetch(fruit(), tmp_path, address=server.address)) == CONTENTS


def test_a_page_that_is_not_there_is_told(tmp_path: Path, server: Server) -> None:
    server.offered.clear()
    with pytest.raises(DatasetError, match=r"cannot download http://.*/apples\.gz: Not Found.*by hand") as told:
        fetch(fruit(), tmp_path, address=server.address)
    assert everything_under(tmp_path) == {}
    reply = told.value.__cause__
    assert isinstance(reply, HTTPError)
    assert reply.fp.closed


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound but not listening: the system refuses whoever comes
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(DatasetError, match=r"cannot download .*refused.*by hand"):
            fetch(fruit(), tmp_path, address=address)
    assert everything_under(tmp_path) == {}


@pytest.mark.parametrize("address", ["http://127.0.0.1:port/", "http://127.0.0.1/a b/", "http://[::1/"])
def test_a_malformed_address_is_told(tmp_path: Path, address: str) -> None:
    with pytest.raises(DatasetError, match="cannot download"):
        fetch(fruit(), tmp_path, address=address)


@pytest.mark.parametrize("scheme", ["file://", "ftp://", "data:", ""])
def test_only_web_addresses_are_followed(tmp_path: Path, scheme: str) -> None:
    folder = put(tmp_path / "source", packed=True)
    with pytest.raises(DatasetError, match="is not a web address"):
        fetch(fruit(), tmp_path / "target", address=f"{scheme}{folder}/")
    assert everything_under(tmp_path / "target") == {}


def test_a_second_fetch_downloads_nothing(tmp_path: Path, server: Server) -> None:
    fetch(fruit(), tmp_path, address=server.address)
    server.asked.clear()
    assert fetch(fruit(), tmp_path, address=server.address) == tmp_path
    assert server.asked == []


def test_what_was_put_there_by_hand_is_not_fetched_again(tmp_path: Path, server: Server) -> None:
    put(tmp_path, packed=True)
    fetch(fruit(), tmp_path, address=server.address)
    assert server.asked == []


@pytest.mark.parametrize("name", ["pears", "pears.gz"])
def test_only_what_is_damaged_is_fetched_again(tmp_path: Path, server: Server, name: str) -> None:
    put(tmp_path)
    (tmp_path / "pears").unlink()
    (tmp_path / name).write_bytes(b"plums")
    fetch(fruit(), tmp_path, address=server.address)
    assert server.asked == ["pears.gz"]
    assert read_checked(fruit(), tmp_path) == CONTENTS


def test_what_an_interrupted_fetch_left_does_no_harm(tmp_path: Path, server: Server) -> None:
    (tmp_path / "apples.part").write_bytes(b"half an app")
    fetch(fruit(), tmp_path, address=server.address)
    assert everything_under(tmp_path) == CONTENTS


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, server: Server) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DatasetError, match="cannot write into"):
        fetch(fruit(), tmp_path / "file" / "fruit", address=server.address)
    assert server.asked == []


def test_a_file_that_cannot_be_written_is_told_and_no_part_of_it_stays(tmp_path: Path, server: Server) -> None:
    (tmp_path / "apples").mkdir()
    with pytest.raises(DatasetError, match=f"cannot write {tmp_path / 'apples'}"):
        fetch(fruit(), tmp_path, address=server.address)
    assert everything_under(tmp_path) == {"apples": None}
