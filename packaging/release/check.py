"""Checks that the artifacts of a release contain what they must. `packaging/release/build` calls it at its end."""

import hashlib
import json
import platform
import re
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import artifacts
from tools import output

# What the Debian package and the tarball have.
FILES = {
    "usr/bin/millrace",
    "usr/sbin/mount.millrace",
    "usr/sbin/mount.fuse.millrace",
    "usr/lib/systemd/system/millrace.service",
    "usr/lib/systemd/system/millrace@.service",
    "usr/lib/systemd/system/millrace-tcp.socket",
    "usr/lib/systemd/system/millrace-rdma.socket",
    "etc/millrace.toml",
    "usr/share/man/man1/millrace.1",
    "usr/share/man/man1/millrace-serve.1",
    "usr/share/man/man1/millrace-mount.1",
    "usr/share/man/man5/millrace.toml.5",
    "usr/share/man/man8/mount.millrace.8",
    "usr/share/bash-completion/completions/millrace",
    "usr/share/zsh/vendor-completions/_millrace",
    "usr/share/fish/vendor_completions.d/millrace.fish",
    "usr/share/doc/millrace/third-party-licences.txt",
    "usr/share/doc/millrace/docs/guide/install.md",
    "usr/share/doc/millrace/grafana/millrace.json",
    "usr/share/doc/millrace/prometheus/millrace.rules.yml",
}
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
# Libraries of the C library; everything else is in the program or is loaded at run time if it exists.
LIBRARIES = re.compile(r"lib(c|m|pthread|dl|rt|util|gcc_s)\.so\.\d+|ld-linux-.*")


class Wrong(Exception):
    """What an artifact lacks, or has and must not have."""


def require(condition, message):
    if not condition:
        raise Wrong(message)


def number(text):
    return tuple(int(part) for part in text.split("."))


def elf(file, target):
    """The machine, the libraries and the version of the C library that a program or library needs."""
    text = output("readelf", "-hdVSW", file)
    require(MACHINES[target.machine] in text, f"{file.name} is not for {target.machine}")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    others = [name for name in needed if not LIBRARIES.fullmatch(name)]
    require(not others, f"{file.name} needs {', '.join(others)}")
    require(target.profile == "dev" or " .symtab " not in text, f"{file.name} has symbols")
    if not target.host:
        newest = max(re.findall(r"GLIBC_([0-9.]+)", text), key=number)
        require(number(newest) <= number(artifacts.GLIBC), f"{file.name} needs the C library {newest}")
        require("libgcc_s.so.1" not in needed, f"{file.name} needs libgcc_s, which the package does not depend on")


def program(file, version, target):
    elf(file, target)
    if target.machine == platform.machine():
        file.chmod(0o755)
        printed = output(file, "--version").strip()
        require(printed == f"millrace {version}", f"millrace --version prints {printed!r}")


def lacking(names, where, extra=()):
    missing = sorted((FILES | set(extra)) - {name.removesuffix(".gz") for name in names})
    require(not missing, f"{where} lacks {', '.join(missing)}")


def deb(file, version, target):
    printed = output("dpkg-deb", "--field", file, "Version", "Architecture", "Depends")
    fields = dict(line.split(": ", 1) for line in printed.splitlines())
    require(fields["Version"].split("-")[0] == version, f"{file.name} has the version {fields['Version']}")
    require(fields["Architecture"] == target.debian, f"{file.name} is for {fields['Architecture']}")
    if not target.host:
        expected = f"libc6 (>= {artifacts.GLIBC})"
        require(fields["Depends"] == expected, f"{file.name} depends on {fields['Depends']}, not on {expected}")
    with tempfile.TemporaryDirectory() as root:
        output("dpkg-deb", "--extract", file, root)
        names = {str(path.relative_to(root)) for path in Path(root).rglob("*")}
        lacking(names, file.name, ["usr/share/doc/millrace/copyright"])
        program(Path(root) / "usr/bin/millrace", version, target)


def tarball(file, version, target):
    top = f"millrace-{version}-{target.machine}-linux/"
    with tarfile.open(file) as archive, tempfile.TemporaryDirectory() as root:
        names = archive.getnames()
        outside = [name for name in names if not name.startswith(top)]
        require(not outside, f"{file.name} has {outside[:1]} outside of {top}")
        lacking({name.removeprefix(top) for name in names}, file.name, artifacts.TARBALL_ONLY)
        archive.extractall(root, filter="data")
        program(Path(root) / top / "usr/bin/millrace", version, target)


def container(file, version, target):
    with tarfile.open(file) as archive, tempfile.TemporaryDirectory() as root:
        (manifest,) = json.load(archive.extractfile("manifest.json"))
        configuration = json.load(archive.extractfile(manifest["Config"]))
        name, architecture, settings = manifest["RepoTags"][0], configuration["architecture"], configuration["config"]
        require(name.endswith(f"millrace:{version}"), f"{file.name} has the image {name}")
        require(architecture == target.debian, f"{file.name} is for {architecture}")
        require(settings["User"] == "10001", f"{file.name} runs as {settings['User'] or 'root'}")
        require(settings.get("Healthcheck"), f"{file.name} has no health check")
        for layer in reversed(manifest["Layers"]):
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                if "usr/bin/millrace" in files.getnames():
                    files.extract("usr/bin/millrace", root, filter="data")
                    return program(Path(root) / "usr/bin/millrace", version, target)
    raise Wrong(f"{file.name} has no usr/bin/millrace")


def installer(path, version):
    """What the script of the release installs from the release."""
    with tempfile.TemporaryDirectory() as prefix:
        output("sh", path / "install.sh", path, "--prefix", prefix)
        printed = output(f"{prefix}/bin/millrace", "--version").strip()
    require(printed == f"millrace {version}", f"install.sh installed {printed!r}")


def wheel(file, version, target):
    python = re.sub(r"-?(rc|alpha|beta)", lambda match: {"rc": "rc", "alpha": "a", "beta": "b"}[match[1]], version)
    tag = f"manylinux_{artifacts.GLIBC.replace('.', '_')}_{target.machine}"
    start = f"millrace_nfs-{python}-cp39-abi3-"
    require(file.name.startswith(start), f"the name of {file.name} does not begin with {start}")
    require(target.host or tag in file.name, f"{file.name} is not for {tag}")
    with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as root:
        names = archive.namelist()
        info = f"millrace_nfs-{python}.dist-info"
        expected = ["millrace_nfs/__init__.py", "millrace_nfs/py.typed", "millrace_nfs/_native.pyi"]
        expected += [f"{info}/entry_points.txt", f"{info}/licenses/LICENSE-MIT", f"{info}/licenses/LICENSE-APACHE"]
        missing = sorted(set(expected) - set(names))
        require(not missing, f"{file.name} lacks {', '.join(missing)}")
        elf(Path(archive.extract("millrace_nfs/_native.abi3.so", root)), target)


def sbom(file, version):
    bom = json.loads(file.read_text())
    root = bom["metadata"]["component"]
    of = root["name"], root["version"]
    require(of == ("millrace-cli", version), f"{file.name} is of {' '.join(of)}")
    listed = {(component["name"], component["version"]) for component in bom["components"]}
    missing = [" ".join(crate) for crate in artifacts.dependencies() if crate not in listed]
    require(not missing, f"{file.name} lacks {', '.join(missing)}")
    paths = set(re.findall(r"file://(/[^/\"]+)", file.read_text())) - {"/millrace"}
    require(not paths, f"{file.name} contains paths of this host: {', '.join(paths)}")


def sums(file):
    lines = dict(reversed(line.split("  ", 1)) for line in file.read_text().splitlines())
    present = {path.name for path in file.parent.iterdir()} - {file.name}
    differing = sorted(set(lines) ^ present)
    require(not differing, f"only one of {file.name} and the directory has {', '.join(differing)}")
    for name, digest in lines.items():
        require(hashlib.sha256((file.parent / name).read_bytes()).hexdigest() == digest, f"{name} has another checksum")


def only(path, pattern):
    found = list(path.glob(pattern))
    require(len(found) == 1, f"{len(found)} files match {pattern} in {path}, not one")
    return found[0]


def directory(path, version, targets, parts):
    """Checks all artifacts of the parts. Ends the program at the first that is wrong."""
    try:
        for target in targets:
            if "deb" in parts:
                deb(only(path, f"millrace_*_{target.debian}.deb"), version, target)
            if "tarball" in parts:
                tarball(only(path, f"millrace-*-{target.machine}-linux.tar.xz"), version, target)
            if "container" in parts:
                container(only(path, f"millrace-*-{target.machine}-container.tar.xz"), version, target)
            if "wheel" in parts:
                wheel(only(path, f"millrace_nfs-*_{target.machine}.whl"), version, target)
        if "sbom" in parts:
            sbom(only(path, "millrace-*.cdx.json"), version)
        if "notes" in parts:
            require(only(path, "release-notes.md").read_text().count("\n- "), "release-notes.md has no entries")
        sums(path / "SHA256SUMS")
        if "tarball" in parts:
            installer(path, version)
    except Wrong as error:
        sys.exit(f"the release is not complete: {error}")
