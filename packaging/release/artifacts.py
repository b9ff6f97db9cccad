"""Makes the artifacts of a release."""

import glob
import io
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tools
import versions
from tools import ROOT, output, run

# The C library of Debian 10 and RHEL 8, also in the wheels' platform tag. Not musl: a static program cannot load rdma-core.
GLIBC = "2.28"
ASSETS = ROOT / "target/package"
# Files that only the tarball has, because the package has them in another form.
TARBALL_ONLY = ["LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"]


@dataclass
class Target:
    """What a build is for. `host` is the plain build of Cargo, with the host's C library."""

    machine: str
    debian: str
    profile: str
    host: bool

    @property
    def triple(self):
        return f"{self.machine}-unknown-linux-gnu"

    @property
    def program(self):
        directory = Path(metadata()["target_directory"]) / ("" if self.host else self.triple)
        return directory / ("debug" if self.profile == "dev" else self.profile) / "millrace"

    def build(self):
        arguments = ["-p", "millrace-cli", "--locked", "--profile", self.profile]
        if self.host:
            # With another time, crates with code in C would be compiled anew, and all that depend on them.
            run("env", "--unset=SOURCE_DATE_EPOCH", "cargo", "build", *arguments)
            return
        run("rustup", "target", "add", self.triple)
        run("cargo", "zigbuild", "--target", f"{self.triple}.{GLIBC}", *arguments, env=tools.zig())


def targets(host, profile):
    """What the release is built for. The first one runs here."""
    found = [Target("x86_64", "amd64", profile, host), Target("aarch64", "arm64", profile, host)]
    found.sort(key=lambda target: target.machine != platform.machine())
    if found[0].machine != platform.machine():
        sys.exit(f"a release is built on x86_64 or aarch64, not on {platform.machine()}")
    return found[:1] if host else found


def metadata():
    return json.loads(output("cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"))


def generate(target):
    """Makes the files that packages contain and the repository does not."""
    shutil.rmtree(ASSETS, ignore_errors=True)
    (ASSETS / "completions").mkdir(parents=True)
    run(target.program, "man", ASSETS / "man")
    for shell in ("bash", "zsh", "fish"):
        (ASSETS / "completions" / shell).write_text(output(target.program, "completions", shell))
    (ASSETS / "third-party-licences.txt").write_text("".join(licences()))


def dependencies():
    """Names and versions of the crates in the program, without those of this repository."""
    tree = output("cargo", "tree", "--locked", "-p", "millrace-cli", "-e", "normal", "--prefix", "none", "-f", "{p}")
    found = {tuple(line.split()[:2]) for line in tree.splitlines() if "(/" not in line}
    return sorted((name, number.removeprefix("v")) for name, number in found)


def licences():
    """The licence of each crate in the program, with the texts that it comes with, for those who get the program."""
    every = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1"))["packages"]
    by_name = {(package["name"], package["version"]): package for package in every}
    for name in dependencies():
        package = by_name[name]
        yield f"{'=' * 80}\n{package['name']} {package['version']}: {package['license']}\n"
        yield f"{package['repository'] or 'no repository'}\n\n"
        for file in sorted(Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and re.match("licen[sc]e|copying|copyright|notice|unlicense", file.name, re.IGNORECASE):
                yield f"{'-' * 40} {file.name}\n{file.read_text(errors='replace')}\n"


def deb(target, directory):
    """The Debian package, for every Debian with a C library of GLIBC or later."""
    arguments = ["-p", "millrace-cli", "--no-build", "--no-strip", "--profile", target.profile]
    # Without the other machine's libraries dpkg-shlibdeps cannot tell the dependencies; check.py compares them.
    arguments += [] if target.host else ["--target", target.triple, "--variant", "release"]
    run(tools.cargo_deb(), "deb", *arguments, "--output", f"{directory}/")


def assets():
    """The files of the Debian package: path in the package, and source, mode or target of a link."""
    package = next(p for p in metadata()["packages"] if p["name"] == "millrace-cli")
    base = Path(package["manifest_path"]).parent
    for asset in package["metadata"]["deb"]["assets"]:
        if isinstance(asset, dict):
            yield asset["dest"], asset["link_name"], None
            continue
        source, dest, mode = asset
        if source == "target/release/millrace":
            yield dest + "millrace", None, mode
            continue
        files = sorted(glob.glob(str(base / source), recursive=True))
        if not files:
            sys.exit(f"nothing matches the asset {source} of crates/cli/Cargo.toml")
        # Like cargo-deb, keep the path below the first part with a wildcard.
        fixed = base / source.split("*")[0]
        for file in files:
            name = os.path.relpath(file, fixed) if "*" in source else Path(source).name
            yield dest + name if dest.endswith("/") or "*" in source else dest, Path(file), mode


def tarball(target, version, directory):
    """A tar archive with the files of the Debian package at the same paths, below one directory."""
    name = f"millrace-{version}-{target.machine}-linux"
    time = int(os.environ["SOURCE_DATE_EPOCH"])

    def add(archive, path, data=b"", mode="644", link=None):
        entry = tarfile.TarInfo(f"{name}/{path}")
        entry.mtime, entry.mode, entry.size = time, int(mode, 8), len(data)
        if link:
            entry.type, entry.linkname = tarfile.SYMTYPE, link
        archive.addfile(entry, io.BytesIO(data))

    with tarfile.open(directory / f"{name}.tar.xz", "w:xz") as archive:
        for path, source, mode in assets():
            if mode is None:
                add(archive, path, mode="777", link=source)
            else:
                add(archive, path, (source or target.program).read_bytes(), mode)
        for path in TARBALL_ONLY:
            add(archive, path, (ROOT / path).read_bytes())


def engine():
    """The program that makes images."""
    found = next(filter(None, map(shutil.which, ["podman", "docker"])), None)
    return found or sys.exit("the part container needs podman or docker: install one, or name the other parts")


def containerfile():
    """The container file without the stage that builds: with the program of the release instead."""
    text = (ROOT / "packaging/container/Containerfile").read_text()
    stage = text[text.rindex("\nFROM ") + 1 :]
    return re.sub(r"^COPY --from=build \S+ ", "COPY millrace ", stage, flags=re.MULTILINE)


def container(target, version, directory):
    """An archive with the image of the server, for `podman load` and `docker load`."""
    tag = f"millrace:{version}"
    # podman keeps the health check only in the format of docker, which is docker's default.
    kind = ["--format", "docker"] if Path(engine()).name == "podman" else []
    with tempfile.TemporaryDirectory() as context:
        text = containerfile()
        shutil.copy(target.program, context)
        for name in re.findall(r"^COPY (packaging/\S+) ", text, re.MULTILINE):
            (Path(context) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, Path(context) / name)
        (Path(context) / "Containerfile").write_text(text)
        options = [*kind, "--platform", f"linux/{target.debian}", "--tag", tag, "--file", f"{context}/Containerfile"]
        run(engine(), "build", *options, context)
    archive = directory / f"millrace-{version}-{target.machine}-container.tar"
    run(engine(), "save", "--output", archive, tag)
    run("xz", "--threads=0", archive)  # podman of Debian 12 does not load an archive of gzip.


def wheel(target, directory):
    """The wheel of the Python package."""
    platform_tag = f"manylinux_{GLIBC.replace('.', '_')}"
    arguments = [] if target.host else ["--target", target.triple, "--zig", "--compatibility", platform_tag]
    made = Path(metadata()["target_directory"]) / "wheels"
    for old in made.glob(f"*{target.machine}.whl"):
        old.unlink()
    zig = {} if target.host else tools.zig()
    run("crates/python/build", *arguments, env={"PROFILE": target.profile, **zig})
    # Not copied, because crates/python/test installs what is in `made`.
    for file in made.glob(f"*{target.machine}.whl"):
        shutil.move(file, directory)


def sbom(version, directory):
    """The software bill of materials of the program, in CycloneDX."""
    with tempfile.TemporaryDirectory() as scratch:
        # cargo-cyclonedx writes a file beside each manifest of the workspace.
        for name in output("git", "ls-files", "*.rs", "*.toml", "Cargo.lock").splitlines():
            copy = Path(scratch) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
        name = f"millrace-{version}.cdx"
        arguments = ["--manifest-path", f"{scratch}/crates/cli/Cargo.toml", "--format", "json", "--spec-version", "1.5"]
        run(tools.cargo_cyclonedx(), "cyclonedx", "--quiet", *arguments, "--override-filename", name, cwd=scratch)
        made = Path(f"{scratch}/crates/cli/{name}.json").read_text()
        # Package URLs and references of the crates of this repository contain the path of the copy.
        (directory / f"{name}.json").write_text(made.replace(f"file://{scratch}", "file:///millrace"))


def release_notes(version, unreleased, directory):
    """The changelog's section of this version."""
    text = versions.notes((ROOT / "CHANGELOG.md").read_text(), "Unreleased" if unreleased else version)
    (directory / "release-notes.md").write_text(f"# Millrace {version}\n\n{text}\n")
