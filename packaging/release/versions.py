#!/usr/bin/env python3
"""Checks that everything that states the version states that of `[workspace.package]` in Cargo.toml.

`--set VERSION` writes a new version to all of these places, and makes the changelog's section of it from what is under
Unreleased. docs/dev/release.md describes a release.
"""

import datetime
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBER = r"[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9a-z.]+)?"
# Files that state the version, with the expression whose group is the version. Other files get it from Cargo.toml.
PLACES = [
    ("Cargo.toml", rf'^version = "({NUMBER})"'),
    ("Cargo.toml", rf'^millrace-\S+ = {{ version = "({NUMBER})"'),
    ("packaging/helm/*/Chart.yaml", rf'^(?:version: |appVersion: ")({NUMBER})'),
    # Names of artifacts and images.
    ("README.md", rf"\bmillrace[-_:]({NUMBER})"),
    ("docs/**/*.md", rf"\bmillrace[-_:]({NUMBER})"),
    ("packaging/kubernetes/*", rf"\bmillrace[-_:]({NUMBER})"),
    ("packaging/container/*", rf"\bmillrace[-_:]({NUMBER})"),
    ("crates/python/*.md", rf"\bmillrace[-_:]({NUMBER})"),
]
# Pages that may state which Rust a build needs, as `Rust 1.93 or newer`. The page of the installation must.
RUST_PAGES = ["*.md", "docs/**/*.md", "crates/python/*.md"]
RUST = re.compile(r"\bRust (\d+\.\d+) or (?:newer|later)")
INSTALLATION = "docs/guide/install.md"


def workspace():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]


def version():
    return workspace()["version"]


def files():
    """The files that may state the version, each with the expression that finds it there."""
    for pattern, expression in PLACES:
        for file in sorted(ROOT.glob(pattern)):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file, re.compile(expression, re.MULTILINE)


def rust_problems(pages, expected):
    """Messages for the pages (path and text) that state another Rust than `expected`."""
    if INSTALLATION not in pages:
        yield f"{INSTALLATION} does not state which Rust a build needs, as `Rust {expected} or newer`"
    for name, text in pages.items():
        for found in RUST.findall(text):
            if found != expected:
                yield f"{name} states Rust {found}, Cargo.toml {expected}"


def problems(expected):
    seen = set()
    pages = {str(f.relative_to(ROOT)): f.read_text() for pattern in RUST_PAGES for f in sorted(ROOT.glob(pattern))}
    pages = {name: text for name, text in pages.items() if RUST.search(text)}
    yield from rust_problems(pages, workspace()["rust-version"])
    for file, expression in files():
        for found in expression.findall(file.read_text()):
            seen.add(file)
            if found != expected:
                yield f"{file.relative_to(ROOT)} states the version {found}, Cargo.toml {expected}"
    # An expression that matches nothing checks nothing.
    for file in ("Cargo.toml", "packaging/helm/millrace/Chart.yaml", "packaging/kubernetes/fuse-pod.yaml"):
        if ROOT / file not in seen:
            yield f"no version found in {file}: correct PLACES in {Path(__file__).name}"
    for file in sorted(f for shelf in ("crates", "testing", "lab") for f in ROOT.glob(f"{shelf}/*/Cargo.toml")):
        package = tomllib.loads(file.read_text())["package"]
        if package["version"] != {"workspace": True}:
            yield f"{file.relative_to(ROOT)} has its own version: write version.workspace = true"
    python = tomllib.loads((ROOT / "crates/python/pyproject.toml").read_text())["project"]
    if "version" not in python.get("dynamic", []):
        yield 'crates/python/pyproject.toml has its own version: write dynamic = ["version"]'
    changelog = (ROOT / "CHANGELOG.md").read_text()
    # What the first release will have is under Unreleased until it is made.
    first = expected == version() and not re.search(rf"^## \[{NUMBER}\]", changelog, re.MULTILINE)
    if not first and notes(changelog, expected) is None:
        yield f"CHANGELOG.md has no section [{expected}]"


def notes(changelog, name):
    """The text of the section `name` of the changelog, or None."""
    match = re.search(rf"^## \[{re.escape(name)}\].*\n((?:(?!## \[).*\n?)*)", changelog, re.MULTILINE)
    return match and match[1].strip()


def set_version(new):
    if not re.fullmatch(NUMBER, new):
        sys.exit(f"{new} is not a version: give MAJOR.MINOR.PATCH")
    changelog = ROOT / "CHANGELOG.md"
    if new == version() and notes(changelog.read_text(), new) is not None:
        sys.exit(f"the version is {new} already")
    for file, expression in files():
        text = file.read_text()
        file.write_text(expression.sub(lambda match: match[0].replace(match[1], new), text))
    heading = f"## [Unreleased]\n\n## [{new}] - {datetime.date.today()}\n"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]\n", heading, 1))
    subprocess.run(["cargo", "update", "--quiet", "--workspace"], cwd=ROOT, check=True)


def main():
    if sys.argv[1:2] == ["--set"] and len(sys.argv) == 3:
        set_version(sys.argv[2])
    elif sys.argv[1:]:
        sys.exit(__doc__)
    found = list(problems(version()))
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
