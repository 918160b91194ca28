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
from turnout.lab.training.datasets import DataFile, Files, data_folder, fetch, find_folder, read_checked

CONTENTS = {"apples": b"red and green " * 50, "pears": bytes(range(256)) * 20}


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fruit(*, archive: str | None = None, system_folders: tuple[str, ...] = ()) -> Files:
    files = tuple(DataFile(name, checksum(content)) for name, content in CONTENTS.items())
    return Files("fruit", files, "http://fruit.invalid/", archive, system_folders)


def write_files(folder: Path, *, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def read_tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def make_tar(*members: tuple[str, bytes], link: bytes | None = None) -> bytes:
    """Returns an archive of files; the first is a link of this kind to the second, if one is given."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for index, (name, content) in enumerate(members):
            member = tarfile.TarInfo(name)
            if link is not None and not index:
                member.type, member.linkname = link, members[1][0]
                archive.addfile(member)
                continue
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture(autouse=True)
def _isolated_data_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNOUT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


class Server:
    """A local web server that records requests and can simulate faults."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.fault = ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/")
                server.requests.append(name)
                if server.fault == "silent":
                    return
                if name not in server.files:
                    self.send_error(404)
                    return
                content = server.files[name]
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
    started.files = {f"{name}.gz": gzip.compress(content) for name, content in CONTENTS.items()}
    thread = threading.Thread(target=started.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield started
    started.http.shutdown()
    started.http.server_close()
    thread.join()


# Finding files


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_found_in_a_given_folder_that_of_turnout_data_and_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    given = write_files(tmp_path / "mine", packed=packed)
    assert find_folder(fruit(), given) == given
    assert read_checked(fruit(), given) == CONTENTS
    for root, variable in (("cache/turnout", ""), ("data", str(tmp_path / "data"))):
        monkeypatch.setenv("TURNOUT_DATA", variable)
        folder = write_files(tmp_path / root / "fruit", packed=packed)
        assert find_folder(fruit()) == folder == data_folder("fruit")
        assert read_checked(fruit()) == CONTENTS
    monkeypatch.delenv("TURNOUT_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder("fruit") == tmp_path / ".cache" / "turnout" / "fruit"


def test_folders_are_searched_in_order_and_a_given_one_alone(tmp_path: Path) -> None:
    files = fruit(system_folders=(str(write_files(tmp_path / "system", packed=True)),))
    assert find_folder(files) == tmp_path / "system"
    own = write_files(tmp_path / "cache" / "turnout" / "fruit")
    assert find_folder(files) == own
    write_files(tmp_path / "cache" / "turnout" / "fruit")
    with pytest.raises(DatasetError, match="fruit was not found in"):
        read_checked(fruit(), tmp_path / "elsewhere")


# Verifying files


def test_a_missing_dataset_names_the_folders_the_files_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as raised:
        read_checked(fruit(system_folders=("/nowhere/fruit",)))
    for fragment in (str(data_folder("fruit")), "/nowhere/fruit", "download it", "apples", "pears"):
        assert fragment in str(raised.value)
    assert raised.value.dataset == "fruit"
    assert read_tree(tmp_path) == {}
    write_files(tmp_path)
    (tmp_path / "pears").unlink()
    with pytest.raises(DatasetError) as raised:
        read_checked(fruit(), tmp_path)
    for fragment in ("pears", str(tmp_path), "download it"):
        assert fragment in str(raised.value)
    assert "apples" not in str(raised.value)


def flip_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("pears", flip_bit(CONTENTS["pears"]), id="a flipped bit"),
        pytest.param("pears", CONTENTS["pears"][:-1], id="a lost byte"),
        pytest.param("pears", b"", id="an empty file"),
        pytest.param("pears.gz", gzip.compress(CONTENTS["pears"])[:-20], id="a truncated gz"),
        pytest.param("pears.gz", flip_bit(gzip.compress(CONTENTS["pears"])), id="a flipped bit in a gz"),
        pytest.param("pears.gz", gzip.compress(b"plums"), id="other content in a gz"),
        pytest.param("pears.gz", CONTENTS["pears"], id="no gz at all"),
    ],
)
def test_the_error_for_damage_names_the_file_the_checksum_and_the_remedy(
    tmp_path: Path, name: str, content: bytes
) -> None:
    write_files(tmp_path)
    (tmp_path / "pears").unlink()
    (tmp_path / name).write_bytes(content)
    before = read_tree(tmp_path)
    with pytest.raises(DatasetError) as raised:
        read_checked(fruit(), tmp_path)
    for fragment in (str(tmp_path / name), checksum(CONTENTS["pears"]), "delete it and download it again"):
        assert fragment in str(raised.value)
    assert raised.value.dataset == "fruit"
    assert read_tree(tmp_path) == before


# Downloading files


def test_files_are_downloaded_one_by_one_from_their_address(tmp_path: Path, server: Server) -> None:
    assert fetch(fruit(), tmp_path / "new" / "fruit", address=server.address) == tmp_path / "new" / "fruit"
    assert read_tree(tmp_path / "new" / "fruit") == CONTENTS
    assert server.requests == ["apples.gz", "pears.gz"]
    sizes: list[int] = []
    fetch(fruit(), tmp_path, address=server.address, watch=sizes.append)
    assert sum(sizes) == sum(map(len, server.files.values()))


def test_addresses_have_a_default_and_may_omit_the_final_slash(tmp_path: Path, server: Server) -> None:
    files = Files("fruit", fruit().files, server.address)
    assert read_tree(fetch(files, tmp_path / "default")) == CONTENTS
    assert read_tree(fetch(fruit(), tmp_path / "given", address=server.address.rstrip("/"))) == CONTENTS
    assert fetch(fruit(), address=server.address) == data_folder("fruit")
    assert read_checked(fruit()) == CONTENTS


def test_an_archive_is_downloaded_once_and_its_subfolders_are_ignored(tmp_path: Path, server: Server) -> None:
    members = [(f"fruit-1.0/deep/{name}", content) for name, content in CONTENTS.items()]
    server.files["fruit.tar.gz"] = make_tar(*members)
    fetch(fruit(archive="fruit.tar.gz"), tmp_path, address=server.address)
    assert read_tree(tmp_path) == CONTENTS
    assert server.requests == ["fruit.tar.gz"]


def test_only_expected_members_are_extracted(tmp_path: Path, server: Server) -> None:
    malicious = [
        ("../evil", b"evil"),
        ("/tmp/turnout-evil", b"evil"),
        ("fruit/extra", b"extra"),
        ("../../apples.sh", b""),
    ]
    members = [(f"../fruit/{name}", content) for name, content in CONTENTS.items()]
    server.files["fruit.tar.gz"] = make_tar(*malicious, *members)
    fetch(fruit(archive="fruit.tar.gz"), tmp_path / "outer" / "inner", address=server.address)
    assert read_tree(tmp_path / "outer" / "inner") == CONTENTS
    assert {path.name for path in (tmp_path / "outer").iterdir()} == {"inner"}
    assert {path.name for path in tmp_path.iterdir()} == {"outer"}
    assert not Path("/tmp/turnout-evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_members_that_are_not_regular_files_are_ignored(tmp_path: Path, server: Server, kind: bytes) -> None:
    members = (("apples", b""), ("hidden", CONTENTS["apples"]), ("pears", CONTENTS["pears"]))
    server.files["fruit.tar.gz"] = make_tar(*members, link=kind)
    with pytest.raises(DatasetError, match="contains no file apples: nothing was kept"):
        fetch(fruit(archive="fruit.tar.gz"), tmp_path, address=server.address)
    assert read_tree(tmp_path) == {}


@pytest.mark.parametrize("archive", [None, "fruit.tar.gz"])
def test_a_file_with_a_wrong_checksum_is_not_kept(tmp_path: Path, server: Server, archive: str | None) -> None:
    server.files["apples.gz"] = gzip.compress(b"plums")
    server.files["fruit.tar.gz"] = make_tar(("apples", b"plums"), ("pears", b"plums"))
    with pytest.raises(DatasetError) as raised:
        fetch(fruit(archive=archive), tmp_path, address=server.address)
    for fragment in ("apples", server.address, checksum(b"plums"), checksum(CONTENTS["apples"]), "not kept"):
        assert fragment in str(raised.value)
    assert read_tree(tmp_path) == {}


def test_a_symlink_in_the_folder_is_replaced_and_not_followed(tmp_path: Path, server: Server) -> None:
    outside = tmp_path / "precious"
    outside.write_bytes(b"precious")
    folder = tmp_path / "fruit"
    folder.mkdir()
    (folder / "apples").symlink_to(outside)
    fetch(fruit(), folder, address=server.address)
    assert outside.read_bytes() == b"precious"
    assert read_tree(folder) == CONTENTS


@pytest.mark.parametrize("archive", [b"", b"no archive", gzip.compress(b"no archive", mtime=0), b"cut short"])
def test_a_damaged_archive_is_reported_and_not_kept(tmp_path: Path, server: Server, archive: bytes) -> None:
    whole = make_tar(*CONTENTS.items())
    server.files["fruit.tar.gz"] = whole[: len(whole) // 2] if archive == b"cut short" else archive
    with pytest.raises(DatasetError, match="nothing was kept"):
        fetch(fruit(archive="fruit.tar.gz"), tmp_path, address=server.address)
    assert read_tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("short", "bytes too early"), ("broken chunk", "IncompleteRead"), ("silent", "without response")],
)
def test_an_interrupted_download_is_reported_and_not_kept(
    tmp_path: Path, server: Server, fault: str, reason: str
) -> None:
    server.fault = fault
    with pytest.raises(DatasetError, match=f"cannot download {server.address}apples.gz: .*{reason}"):
        fetch(fruit(), tmp_path, address=server.address)
    assert read_tree(tmp_path) == {}
    server.fault = ""
    assert read_tree(fetch(fruit(), tmp_path, address=server.address)) == CONTENTS


def test_a_missing_page_and_a_response_that_is_not_gzip_are_reported(tmp_path: Path, server: Server) -> None:
    server.files["apples.gz"] = b"<html>Please log in</html>"
    with pytest.raises(DatasetError, match=r"apples\.gz is not a gzip file .*: nothing was kept"):
        fetch(fruit(), tmp_path, address=server.address)
    server.files.clear()
    with pytest.raises(DatasetError, match=r"cannot download http://.*/apples\.gz: Not Found.*by hand") as raised:
        fetch(fruit(), tmp_path, address=server.address)
    assert read_tree(tmp_path) == {}
    assert isinstance(raised.value.__cause__, HTTPError)
    assert raised.value.__cause__.fp.closed


def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound but not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(DatasetError, match=r"cannot download .*refused.*by hand"):
            fetch(fruit(), tmp_path, address=address)
    for malformed in ("http://127.0.0.1:port/", "http://127.0.0.1/a b/", "http://[::1/"):
        with pytest.raises(DatasetError, match="cannot download"):
            fetch(fruit(), tmp_path, address=malformed)
    assert read_tree(tmp_path) == {}


@pytest.mark.parametrize("scheme", ["file://", "ftp://", "data:", ""])
def test_only_web_addresses_are_accepted(tmp_path: Path, scheme: str) -> None:
    folder = write_files(tmp_path / "source", packed=True)
    with pytest.raises(DatasetError, match="is not a web address"):
        fetch(fruit(), tmp_path / "target", address=f"{scheme}{folder}/")
    assert read_tree(tmp_path / "target") == {}


def test_files_that_are_there_are_not_downloaded_again(tmp_path: Path, server: Server) -> None:
    write_files(tmp_path, packed=True)
    for _ in range(2):
        assert fetch(fruit(), tmp_path, address=server.address) == tmp_path
    assert server.requests == []


@pytest.mark.parametrize("name", ["pears", "pears.gz"])
def test_only_damaged_files_are_downloaded_again(tmp_path: Path, server: Server, name: str) -> None:
    write_files(tmp_path)
    (tmp_path / "pears").unlink()
    (tmp_path / name).write_bytes(b"plums")
    fetch(fruit(), tmp_path, address=server.address)
    assert server.requests == ["pears.gz"]
    assert read_checked(fruit(), tmp_path) == CONTENTS


def test_what_cannot_be_written_is_reported_and_leaves_no_partial_file(tmp_path: Path, server: Server) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DatasetError, match="cannot write into"):
        fetch(fruit(), tmp_path / "file" / "fruit", address=server.address)
    assert server.requests == []
    folder = tmp_path / "folder"
    (folder / "apples").mkdir(parents=True)
    with pytest.raises(DatasetError, match=f"cannot write {folder / 'apples'}"):
        fetch(fruit(), folder, address=server.address)
    assert read_tree(folder) == {"apples": None}
