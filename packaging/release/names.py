#!/usr/bin/env python3
"""Checks that the names of the public crates and of the wheel are free in their registries, or are this project's.

    packaging/release/names.py [NAME]...      # all names without NAME

A published package is this project's if it has the description of the manifest here. `packaging/release/build` calls it
before it packages. Without a network it prints SKIPPED. It asks through cargo and pip, in the registries that they are
configured for.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

import artifacts
from tools import ROOT

# Packages that exist: a registry that does not know them did not answer.
KNOWN_CRATE, KNOWN_WHEEL = "serde", "pip"


def ask(*command):
    """The exit status and the output of a command, outside of the workspace, whose crates cargo would take."""
    environment = {**os.environ, "CARGO_TERM_COLOR": "never", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    return done.returncode, done.stdout


def reason(text):
    return (text.strip().splitlines() or ["no message"])[-1].strip()


def crate(name):
    """The description of the newest version of a crate; None if there is no such crate."""
    status, text = ask("cargo", "info", "--quiet", "--registry", "crates-io", name)
    if status == 0:
        # The name with the keywords, the description, which may have several lines, and `version:`.
        return " ".join(re.split(r"^version: ", text, maxsplit=1, flags=re.MULTILINE)[0].splitlines()[1:]).strip()
    if "could not find" in text:
        return None
    raise ConnectionError(reason(text))


def wheel(name):
    """The summary of the newest version of a distribution; None if there is no such distribution."""
    pip = [sys.executable, "-m", "pip"]
    status, text = ask(*pip, "index", "versions", name)
    if status:
        if "No matching distribution" in text:
            return None
        raise ConnectionError(reason(text))
    with tempfile.TemporaryDirectory() as directory:
        ask(*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", directory, name)
        for file in Path(directory).glob("*.whl"):
            with zipfile.ZipFile(file) as archive:
                metadata = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
                summary = re.search(r"^Summary: (.*)", archive.read(metadata).decode(), re.MULTILINE)
                return summary[1].strip() if summary else ""
    return ""  # Without a wheel it is not this project's.


def ours():
    """Name, description here and function that asks the registry, of each package that is published."""
    for package in artifacts.metadata()["packages"]:
        if package["publish"] is None:
            yield package["name"], package["description"], crate
    python = tomllib.loads((ROOT / "crates/python/pyproject.toml").read_text())["project"]
    yield python["name"], python["description"], wheel


def problems(packages):
    """A message for each name that another project has, and for each registry that does not answer one with SKIPPED."""
    known = {crate: KNOWN_CRATE, wheel: KNOWN_WHEEL}
    reached = set()
    for name, description, registry in packages:
        try:
            if registry not in reached and registry(known[registry]) is None:
                raise ConnectionError(f"it does not know {known[registry]}")
            reached.add(registry)
            published = registry(name)
        except ConnectionError as error:
            yield f"SKIPPED: the {registry.__name__} {name}, because its registry does not answer: {error}"
            continue
        if published not in (None, " ".join(description.split())):
            yield f"the {registry.__name__} {name} belongs to another project ({published}): publish under another name"


def check(names=()):
    """Ends the program if another project has one of the names."""
    packages = [package for package in ours() if not names or package[0] in names]
    unknown = sorted(set(names) - {package[0] for package in packages})
    if unknown:
        sys.exit(f"nothing named {unknown[0]} is published")
    found = list(problems(packages))
    skipped = [message for message in found if message.startswith("SKIPPED")]
    print("\n".join([*skipped, f"{len(packages) - len(skipped)} of {len(packages)} names examined"]))
    if taken := [message for message in found if message not in skipped]:
        sys.exit("\n".join(taken))



if __name__ == "__main__":
    check(sys.argv[1:])
