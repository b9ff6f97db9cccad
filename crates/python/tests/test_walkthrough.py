"""The page docs/guide/python.md: its programs print what it says, and its commands install the package.

The commands of the page run in an empty directory that stands for a copy of the repository. The build of the wheel is
long, so `crates/python/build` is replaced by a copy of the wheel that crates/python/test has built.
"""

import os
import re
import subprocess
import sys

import pytest

import millrace_nfs
from conftest import PROGRAM, ROOT

PAGE = (ROOT / "docs" / "guide" / "python.md").read_text()
BLOCKS = re.findall(r"```(sh|python|text)\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def default_ports():
    """A server on the ports of the page, unless others use them."""
    program = f"{PROGRAM} serve --export /data=memory:64MiB --log error".split()
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    ready = process.stdout.readline()
    if not ready.startswith("ready"):
        pytest.skip("the ports 2049 and 20049 are in use")
    yield
    process.kill()
    process.wait()
    process.stdout.close()


def blocks(kind):
    return [text for found, text in BLOCKS if found == kind]


def test_the_programs_print_what_the_page_says(default_ports):
    programs, outputs = blocks("python"), blocks("text")
    assert len(programs) == len(outputs) == 4
    for program, expected in zip(programs, outputs):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.stderr) == (expected, ""), program


@pytest.mark.long
def test_the_commands_install_the_package(default_ports, tmp_path):
    wheels = list((ROOT / "target" / "wheels").glob("millrace_nfs-*.whl"))
    if not wheels:
        pytest.skip("no wheel: run crates/python/build")
    stand_in = tmp_path / "crates" / "python" / "build"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(f"#!/bin/sh\nmkdir -p target/wheels && cp {wheels[0]} target/wheels\n")
    stand_in.chmod(0o755)
    first, *_ = blocks("python")
    (tmp_path / "first.py").write_text(first)
    commands = [text for text in blocks("sh") if "millrace serve" not in text]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["sh", "-ec", "\n".join(commands)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(blocks("text")[0]), done.stdout


def test_the_page_names_what_exists():
    for name in set(re.findall(r"`((?:Client|File)\.\w+)`", PAGE)):
        kind, method = name.split(".")
        assert hasattr(getattr(millrace_nfs, kind), method), name
    for path in set(re.findall(r"`(crates/python/[\w.]+)`", PAGE)):
        assert (ROOT / path).exists(), path
