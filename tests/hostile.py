"""Files that were made to fill the memory of their reader, and commands that run with little memory."""

from __future__ import annotations

import gzip
import io
import os
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: The address space of a command in these tests: twice what an ordinary command needs, a quarter of what a bomb needs.
ADDRESS_SPACE = 2 << 30
GIB = 1 << 30
_BLOCK = 1 << 22


class Outcome(NamedTuple):
    """The result of a command: the exit code, standard output and standard error."""

    code: int
    output: str
    errors: str


def run_limited(*arguments: object, program: Path | None = None) -> Outcome:
    """Runs `turnout`, or a program, with a limited address space, so that reading too much fails on every machine."""
    command = [sys.executable, *(["-m", "turnout"] if program is None else [str(program)]), *map(str, arguments)]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "500", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)),
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def one_line_error(*arguments: object) -> str:
    """Returns the error message of a command with little memory: one line, no traceback, exit code 2."""
    code, output, errors = run_limited(*arguments)
    assert (code, output) == (2, ""), (code, output[-500:], errors[-2000:])
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors


def gzip_bomb(content: bytes, size: int = 8 * GIB, start: bytes = b"") -> bytes:
    """Returns a small gzip file that decompresses to `start` and then `content`, repeated up to about `size` bytes."""
    block = gzip.compress(content * (_BLOCK // len(content)), 9)
    return gzip.compress(start) + block * (size // _BLOCK)


def deflate_bomb(size: int) -> bytes:
    """Returns a small deflate stream of about `size` zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(_BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * (size // _BLOCK) + packer.flush()


class ZipEntry(NamedTuple):
    """An entry of a zip file: what is stored, and what the directory states; the checksum is that of stored bytes."""

    name: str
    data: bytes
    stated_size: int
    method: int = 8


def zip_file(entries: Sequence[ZipEntry], directory_size: int | None = None) -> bytes:
    """Returns a zip file with these entries; its directory may state what is not true."""
    body, directory = io.BytesIO(), io.BytesIO()
    for entry in entries:
        name, offset = entry.name.encode(), body.tell()
        shared = struct.pack(
            "<HHHHHLLLHH",
            20,
            0,
            entry.method,
            0,
            0,
            zlib.crc32(entry.data),
            len(entry.data),
            entry.stated_size,
            len(name),
            0,
        )
        body.write(b"PK\x03\x04" + shared + name + entry.data)
        directory.write(
            b"PK\x01\x02" + struct.pack("<H", 20) + shared + struct.pack("<HHHLL", 0, 0, 0, 0, offset) + name
        )
    count, start = len(entries), body.tell()
    size = len(directory.getvalue()) if directory_size is None else directory_size
    end = b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, count, count, size, start, 0)
    return body.getvalue() + directory.getvalue() + end


def npy(shape: str, dtype: str = "<f8", data: bytes = b"") -> bytes:
    """Returns a file in NumPy's format whose header states this shape and type."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(**arrays: Any) -> bytes:
    """Returns an ordinary npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
