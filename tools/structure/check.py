#!/usr/bin/env python3
"""Checks that the crates and modules are ordered as ARCHITECTURE.md says. docs/dev/ci.md explains it.

- A crate depends only on crates above it in the table of ARCHITECTURE.md, and every crate is in the table. Those of
  `crates/` depend on those of `testing/` in tests only, and on those of `lab/` never.
- No two sibling modules of a crate refer to each other, directly or through others, except those in `exceptions`.
- Modules that allow `unsafe_code` are named in ARCHITECTURE.md, and the source files and folders that it and the design
  notes name exist.
- The crates that use the client know no wire format: they name no type of the codec of NFS.
- No crate of the product names the Read-Read design, which is a protocol of the lab.
- A crate names every library of its manifest; for tests alone, the documents that it includes may.

With --edges CRATE it prints the references between the modules that refer to each other. With --update it removes from
`exceptions` what is no longer so, and shortens groups of modules that have become smaller.
"""

import re
import sys
import tomllib
from pathlib import Path

from rust_modules import Crate, components

HERE = Path(__file__).resolve().parent
# Folders of crates: the product, what tests it, and research.
SHELVES = ("crates", "testing", "lab")
# They use the client's `ops`, so that a procedure's form in NFSv3 and in NFSv4 is known in the client alone.
ABOVE_OPS = ("cli", "copy", "fuse", "object-store", "objects", "opendal", "program", "python")
# The design of 2003 that `lab/read-read/` has.
READ_READ = re.compile(r"\bread[-_ ]read\b|ReadRead|RdRd", re.IGNORECASE)
# Names of libraries that are not those of their packages.
LIBRARIES = {"md-5": "md5", "rustls-webpki": "webpki"}
# Pages whose sources must exist.
DESCRIPTIONS = ("ARCHITECTURE.md", "docs/dev/changing.md", "docs/dev/design/*.md")


def exceptions(file):
    """What the file lists, with the reason: `crate: module`, names of modules; or `crate -> crate`."""
    found = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        entry, _, reason = line.partition(" # ")
        if not reason:
            raise SystemExit(f"{file}:{number}: no reason (ENTRY # REASON)")
        found[entry.strip()] = number
    return found


def crate_table(text):
    """The crates of ARCHITECTURE.md's table, in order."""
    names, inside = [], False
    for line in text.splitlines():
        if line.startswith("| crate |"):
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and not line.startswith("|--"):
            names += re.findall(r"`([a-z][a-z0-9-]*)`", line.split("|")[1])
    return names


def on_shelves(root, pattern):
    """The files that match on any shelf, sorted by shelf."""
    return [file for shelf in SHELVES for file in sorted(root.glob(f"{shelf}/{pattern}"))]


def manifests(root):
    """Crate -> the crates of this workspace that its manifest names: (name, is it for tests only)."""
    found = {}
    folders = {f.parent.name: tomllib.loads(f.read_text()) for f in on_shelves(root, "*/Cargo.toml")}
    packages = {m["package"]["name"]: folder for folder, m in folders.items()}
    for folder, manifest in folders.items():
        parts = [manifest, *manifest.get("target", {}).values()]
        found[folder] = [
            (packages[name], kind == "dev-dependencies")
            for part in parts
            for kind in ("dependencies", "build-dependencies", "dev-dependencies")
            for key, value in part.get(kind, {}).items()
            for name in [value.get("package", key) if isinstance(value, dict) else key]
            if name in packages and packages[name] != folder  # Tests may enable features of their own crate.
        ]
    return found


def wrong_order(root, table):
    """Dependencies on crates that are not above: `crate -> crate`; messages for crates that are not in the table, and for
    dependencies on another shelf."""
    found, missing = [], []
    shelves = {f.parent.name: f.parent.parent.name for f in on_shelves(root, "*/Cargo.toml")}
    for crate, others in manifests(root).items():
        if crate not in table:
            missing.append(f"the crate {crate} is not in the table of crates in ARCHITECTURE.md")
            continue
        for other, tests in others:
            if not may_use(shelves[crate], shelves[other], tests):
                missing.append(f"{shelves[crate]}/{crate} depends on {shelves[other]}/{other}")
            if other in table and table.index(other) >= table.index(crate):
                found.append(f"{crate} -> {other}" + (" (tests)" if tests else ""))
    return found, missing


def may_use(shelf, other, tests):
    """Whether a crate of `shelf` may depend on one of the shelf `other`, or its tests may."""
    return other in {"crates": ("crates", *(("testing",) if tests else ())), "testing": ("crates", "testing")}.get(shelf, SHELVES)


def crates(root):
    """Name and modules of each library and program."""
    for folder in on_shelves(root, "*/src"):
        for file in ("lib.rs", "main.rs"):
            if (folder / file).exists():
                yield folder.parent.name, Crate(folder / file)


def cycles(root):
    """Groups of sibling modules that refer to each other: `crate::parent: names`."""
    found = []
    for name, crate in crates(root):
        for parent, graph in sorted(crate.edges().items()):
            for part in components(graph):
                found.append(f"{'::'.join((name, *parent))}: {', '.join(part)}")
    return found


def missing_files(root):
    """Messages for source files and folders that a page names and that do not exist. It may leave out upper folders."""
    files = ["/" + str(f.relative_to(root)) for f in root.glob("**/*.rs") if "target" not in f.relative_to(root).parts]
    for page in sorted(page for pattern in DESCRIPTIONS for page in root.glob(pattern)):
        for name in sorted({n for part in re.findall(r"`[^`]+`", page.read_text()) for n in names_of(part)}):
            there = {
                ".rs": lambda: any(file.endswith("/" + name) for file in files),
                "/": lambda: any((root / top / name).is_dir() for top in (".", *SHELVES)) or any("/" + name in f for f in files),
            }
            if any(name.endswith(end) and not exists() for end, exists in there.items()) and " " not in name:
                yield f"{page.relative_to(root)} names {name}, which does not exist"


def codec_users(root):
    """Messages for crates above the client's `ops` that name the codec of NFS, in code that is not for tests."""
    for crate, others in manifests(root).items():
        if crate in ABOVE_OPS and ("nfs", False) in others:
            yield f"crates/{crate} depends on the codec of NFS: use the types of millrace_client::ops"
    for crate in ABOVE_OPS:
        for file in sorted((root / "crates" / crate / "src").glob("**/*.rs")):
            if re.search(r"\bmillrace_client::(\{[^;]*\b)?nfs\b", file.read_text()):
                yield f"{file.relative_to(root)} names the codec of NFS: use the types of millrace_client::ops"


def designs(root):
    """Messages for source files of the product that name the Read-Read design."""
    for file in sorted(root.glob("crates/*/src/**/*.rs")):
        if named := READ_READ.search(file.read_text()):
            yield f"{file.relative_to(root)} names the Read-Read design ({named[0]}), which only lab/read-read/ has"


def unused_dependencies(root):
    """Messages for libraries of a manifest that no source file names."""

    def text(folder, *patterns):
        for file in (f for pattern in patterns for f in folder.glob(pattern)):
            source = file.read_text()
            # Examples in a document are tests of the crate that includes it.
            pages = [file.parent / page for page in re.findall(r'#\[doc = include_str!\("([^"]+)"\)', source)]
            # A module of another crate, with those below it.
            modules = [file.parent / module for module in re.findall(r'#\[path = "([^"]+)"\]', source)]
            below = [f for m in modules for f in (m.parent.glob("**/*.rs") if m.name == "mod.rs" else [m])]
            # What an example includes, to be hidden in it.
            hidden = re.findall(r'include!\(concat!\(env!\("CARGO_MANIFEST_DIR"\), "/([^"]+)"\)', source)
            yield "\n".join((source, *(f.read_text() for f in pages + below + [folder / name for name in hidden])))

    for file in on_shelves(root, "*/Cargo.toml"):
        manifest = tomllib.loads(file.read_text())
        product = "\n".join(text(file.parent, "src/**/*.rs", "fuzz_targets/*.rs", "build.rs"))
        tests = "\n".join((product, *text(file.parent, "tests/**/*.rs", "examples/**/*.rs")))
        for kind, named in (("dependencies", product), ("dev-dependencies", tests), ("build-dependencies", product)):
            for name in [n for part in (manifest, *manifest.get("target", {}).values()) for n in part.get(kind, {})]:
                if not re.search(rf"\b{LIBRARIES.get(name, name).replace('-', '_')}\b", named):
                    yield f"{file.relative_to(root)} has {name} in {kind}, which no source file names"


def compare(found, listed, what):
    """Messages for what is not listed, and for what is listed and gone."""
    for entry in found:
        if entry not in listed:
            yield f"{what}: {entry}"
    for entry, number in listed.items():
        if entry not in found:
            yield f"exceptions:{number}: remove or shorten this line, which is no longer so: {entry}"


def updated(text, found):
    """The text of `exceptions` without what is gone; a group that has become smaller keeps its reason."""
    lines = []
    for line in text.splitlines():
        entry, _, reason = line.partition(" # ")
        if not reason or line.startswith("#"):
            lines.append(line)
            continue
        head, _, names = entry.strip().partition(": ")
        parts = [f for f in found if f == entry.strip()]
        if names:
            listed = set(names.split(", "))
            parts = [f for f in found if f.startswith(head + ": ") and set(f[len(head) + 2 :].split(", ")) <= listed]
        lines += [f"{part} # {reason}" for part in parts]
    return "\n".join(lines) + "\n"


def names_of(cell):
    """The paths in backticks of a table cell, with their braces expanded."""
    for text in re.findall(r"`([^`]+)`", cell):
        head, brace, rest = text.partition("{")
        if not brace:
            yield text
            continue
        inner, _, tail = rest.partition("}")
        yield from (head + i + (tail if not i.endswith("/") else "") for i in inner.split(","))


def unsafe_modules(root, text):
    """Messages for source files that allow `unsafe_code` and are not named in ARCHITECTURE.md, and for the reverse."""
    row = re.search(r"^\| Where is `unsafe`\? \|(.*)\|$", text, re.MULTILINE)
    named = set(names_of(row[1]))
    allowed = {
        str(f.relative_to(root)).removeprefix("crates/")
        for f in on_shelves(root, "*/src/**/*.rs")
        if re.search(r"#!?\[(expect|allow)\([^)]*\bunsafe_code\b", f.read_text())
    }
    for file in sorted(allowed):
        if file not in named and not any(n.endswith("/") and file.startswith(n) for n in named):
            yield f"{file} allows unsafe_code and ARCHITECTURE.md (Where is `unsafe`?) does not name it"
    for name in sorted(named):
        if not any(file == name or name.endswith("/") and file.startswith(name) for file in allowed):
            yield f"ARCHITECTURE.md (Where is `unsafe`?) names {name}, which does not allow unsafe_code"


def problems(root, listed):
    """All messages."""
    text = (root / "ARCHITECTURE.md").read_text()
    order, missing = wrong_order(root, crate_table(text))
    arrows = {e: n for e, n in listed.items() if "->" in e}
    groups = {e: n for e, n in listed.items() if "->" not in e}
    return [
        *missing,
        *compare(order, arrows, "dependency on a crate that is not above in ARCHITECTURE.md's table"),
        *compare(cycles(root), groups, "modules that refer to each other"),
        *unsafe_modules(root, text),
        *missing_files(root),
        *codec_users(root),
        *designs(root),
        *unused_dependencies(root),
    ]


def print_edges(root, wanted):
    """The references between modules that refer to each other, in one crate."""
    for name, crate in crates(root):
        if name != wanted:
            continue
        for parent, graph in sorted(crate.edges().items()):
            for part in components(graph):
                print(f"{'::'.join((name, *parent))}: {', '.join(part)}")
                for a in part:
                    for b in sorted(set(graph.get(a, ())) & set(part)):
                        uses = ", ".join(sorted(f"{module}: {path}" for module, path in graph[a][b]))
                        print(f"  {a} -> {b}  ({uses})")


def main():
    root = HERE.parent.parent
    if sys.argv[1:2] == ["--edges"]:
        return print_edges(root, sys.argv[2])
    file = HERE / "exceptions"
    if sys.argv[1:2] == ["--update"]:
        order, _ = wrong_order(root, crate_table((root / "ARCHITECTURE.md").read_text()))
        file.write_text(updated(file.read_text(), order + cycles(root)))
    found = problems(root, exceptions(file))
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
