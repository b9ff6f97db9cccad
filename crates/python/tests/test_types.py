"""The types of the package, as mypy sees them in programs of users."""

import os
import subprocess
import sys
import textwrap

import pytest

from conftest import ROOT

pytest.importorskip("mypy")

PROGRAM = """
import asyncio
import io
import sys
from typing import Union
from typing_extensions import assert_type

import millrace_nfs
import millrace_nfs.aio

client = millrace_nfs.Client("nfs://server/data")
assert_type(client.open("file"), millrace_nfs.File)
assert_type(client.open("file", "r+b"), millrace_nfs.File)
assert_type(client.open("file", "w", encoding="utf-8"), io.TextIOWrapper)
assert_type(client.open("file", sys.argv[1]), Union[millrace_nfs.File, io.TextIOWrapper])
assert_type(client.read_bytes("file"), bytes)
assert_type(client.stat("file").st_size, int)
client.open("file", "w").write(b"bytes")  # type: ignore[arg-type]


async def main() -> None:
    aio = millrace_nfs.aio.Client("nfs://server/data")
    async with await aio.open("file") as file:
        assert_type(await file.read(), bytes)
    assert_type(await aio.put("local", "file"), int)
    assert_type(await aio.listdir(), list[str])


asyncio.run(main())
"""


def mypy(*arguments, cwd):
    environment = {**os.environ, "MYPYPATH": str(ROOT / "crates" / "python" / "python")}
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cwd / "cache"), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_has_no_type_errors(tmp_path):
    mypy("-p", "millrace_nfs", cwd=tmp_path)


def test_programs_see_types(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    mypy("program.py", cwd=tmp_path)
