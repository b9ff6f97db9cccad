"""The tools that make a release, in pinned versions below target/tools, and how programs are run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target/tools"
CARGO_DEB = "3.8.0"
CARGO_CYCLONEDX = "0.5.9"
ZIG = ["cargo-zigbuild==0.24.1", "ziglang==0.15.2"]


def run(*command, env=None, cwd=ROOT):
    """Runs a command whose failure ends the release."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, env={**os.environ, **(env or {})})
    if done.returncode:
        sys.exit(f"failed with status {done.returncode}: {' '.join(map(str, command))}")


def output(*command, cwd=ROOT):
    """What a command prints."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"failed with status {done.returncode}: {' '.join(command)}\n{done.stderr}")
    return done.stdout


def cargo_tool(name, version):
    """A program that Cargo installs from its source, the first time in some minutes."""
    root = TOOLS / f"{name}-{version}"
    if not (root / "bin" / name).exists():
        build = TOOLS / "build"
        run("cargo", "install", "--quiet", "--locked", "--root", root, "--target-dir", build, f"{name}@{version}")
    return root / "bin" / name


def cargo_deb():
    return cargo_tool("cargo-deb", CARGO_DEB)


def cargo_cyclonedx():
    return cargo_tool("cargo-cyclonedx", CARGO_CYCLONEDX)


def zig():
    """The variables with which `cargo zigbuild` and maturin find Zig, from the Python package index."""
    directory = TOOLS / "zig"
    stamp = directory / "packages"
    if not stamp.exists() or stamp.read_text() != " ".join(ZIG):
        run(sys.executable, "-m", "venv", "--clear", directory)
        run(directory / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *ZIG)
        stamp.write_text(" ".join(ZIG))
    return {"PATH": f"{directory / 'bin'}:{os.environ['PATH']}"}
