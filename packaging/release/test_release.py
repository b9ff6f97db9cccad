#!/usr/bin/env python3
"""Tests that the checks of a release find what is wrong."""

import io
import json
import os
import platform
import re
import tarfile
import tempfile
import unittest
from pathlib import Path

import artifacts
import check
import names
import tools
import versions

HERE = artifacts.Target(platform.machine(), "amd64", "release", host=True)


class Release(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = Path(scratch.name)

    def wrong(self, message, function, *arguments):
        with self.assertRaises(check.Wrong) as caught:
            function(*arguments)
        self.assertIn(message, str(caught.exception))

    def test_sections_of_a_changelog(self):
        text = "# Log\n\n## [Unreleased]\n\n## [1.0.0] - 2026-01-02\n\n### Added\n\n- one\n\n## [0.1.0] - 2025-01-02\n- two\n"
        self.assertEqual(versions.notes(text, "Unreleased"), "")
        self.assertEqual(versions.notes(text, "1.0.0"), "### Added\n\n- one")
        self.assertEqual(versions.notes(text, "0.1.0"), "- two")
        self.assertIsNone(versions.notes(text, "0.2.0"))

    def test_another_version_is_found_in_every_place(self):
        found = "\n".join(versions.problems("99.0.0"))
        for place in ("Cargo.toml", "Chart.yaml", "fuse-pod.yaml", "CHANGELOG.md"):
            self.assertIn(place, found)

    def test_the_template_unit_has_the_settings_of_the_service(self):
        service, template = ((artifacts.ROOT / f"packaging/systemd/millrace{at}.service").read_text() for at in ("", "@"))
        settings = [line for line in template.splitlines() if not line.startswith("#")]
        expected = [line for line in service.splitlines() if not line.startswith("#")]
        own = {
            "Description=Millrace, NFS over RDMA and TCP": "Description=Millrace, NFS over RDMA and TCP, %i",
            "RuntimeDirectory=millrace": "RuntimeDirectory=millrace-%i",
            "StateDirectory=millrace": "StateDirectory=millrace-%i",
        }
        expected = [own.get(line, line.replace("/etc/millrace.toml", "/etc/millrace/%i.toml")) for line in expected]
        self.assertEqual(settings, expected)

    def answers(self, **texts):
        """Lets the registries answer with the text for the last word of a command, and otherwise that it is unknown."""
        known = {"serde": "serde #keyword\nA framework\nversion: 1.0.0\n", "pip": "pip (1.0)"}

        def ask(*command):
            text = {**known, **texts}.get(command[-1])
            return (0, text) if text else (1, "could not find it in the registry. No matching distribution found")

        self.addCleanup(setattr, names, "ask", names.ask)
        names.ask = ask

    def test_a_name_of_another_project_is_found(self):
        self.answers(x="x\nOf others\nversion: 0.1.0\n", y="y #nfs\nTwo\nlines\nversion: 1.0.0\n", w="w (1.0)")
        packages = [("x", "Ours", names.crate), ("y", "Two lines", names.crate), ("free", "Ours", names.crate)]
        (found,) = names.problems(packages)
        self.assertIn("the crate x belongs to another project (Of others)", found)
        packages = [("free", "Ours", names.wheel), ("w", "Ours", names.wheel)]
        found = list(names.problems(packages))
        self.assertEqual(len(found), 1)
        self.assertIn("the wheel w belongs to another project", found[0])

    def test_a_registry_that_does_not_answer_is_said(self):
        self.answers(serde=None, pip=None)
        for registry in (names.crate, names.wheel):
            (found,) = names.problems([("free", "Ours", registry)])
            self.assertIn(f"SKIPPED: the {registry.__name__} free, because its registry does not answer", found)
        names.ask = lambda *_: (1, "warning: x\nerror: no route to host\n")
        (found,) = names.problems([("free", "Ours", names.crate)])
        self.assertIn("no route to host", found)

    def test_the_published_names_are_those_of_the_manifests(self):
        published = {name: registry for name, _, registry in names.ours()}
        self.assertIs(published.get("millrace-cli"), names.crate)
        self.assertNotIn("millrace", published)
        self.assertIs([registry for name, _, registry in names.ours() if name == "millrace-nfs"][-1], names.wheel)

    def test_the_workflows_have_the_compiler_of_the_baseline_and_programs_that_exist(self):
        baseline = re.search(r"rustc (\d+\.\d+)", (artifacts.ROOT / ".ci/instructions.baseline").read_text())[1]
        for name, program in {"ci": ".ci/run", "release": "packaging/release/build"}.items():
            text = (artifacts.ROOT / f".github/workflows/{name}.yml").read_text()
            self.assertEqual(set(re.findall(r"(?:rust:|toolchain install )(\d[\d.]*)", text)), {baseline})
            self.assertIn(f"- run: {program}\n", text)
            self.assertTrue(os.access(artifacts.ROOT / program, os.X_OK))

    def test_pages_that_state_another_rust_version_are_found(self):
        right = {versions.INSTALLATION: "needs Rust 1.93 or newer"}
        self.assertEqual(list(versions.rust_problems(right, "1.93")), [])
        (found,) = versions.rust_problems({**right, "a.md": "Rust 1.92 or later, or Rust 1.93 or newer"}, "1.93")
        self.assertEqual(found, "a.md states Rust 1.92, Cargo.toml 1.93")
        (found,) = versions.rust_problems({}, "1.93")
        self.assertIn("does not state which Rust a build needs", found)

    def test_a_tarball_without_its_files_is_refused(self):
        file = self.path / "millrace-1.0.0-x86_64-linux.tar.xz"
        with tarfile.open(file, "w:xz") as archive:
            archive.addfile(tarfile.TarInfo(f"millrace-1.0.0-{HERE.machine}-linux/usr/bin/millrace"), io.BytesIO())
        self.wrong("usr/sbin/mount.millrace", check.tarball, file, "1.0.0", HERE)

    def test_a_program_for_another_machine_or_a_newer_c_library_is_refused(self):
        shell = Path("/bin/sh").resolve()
        check.elf(shell, HERE)
        other = "aarch64" if HERE.machine == "x86_64" else "x86_64"
        self.wrong(f"is not for {other}", check.elf, shell, artifacts.Target(other, "", "release", host=True))
        newest = artifacts.GLIBC
        self.addCleanup(setattr, artifacts, "GLIBC", newest)
        artifacts.GLIBC = "2.2"
        self.wrong("needs the C library", check.elf, shell, artifacts.Target(HERE.machine, "", "release", host=False))

    def image(self, **changes):
        """The archive of an image as `docker save` writes it, with a program that prints a version."""
        settings = {"User": "10001", "Healthcheck": {"Test": ["CMD"]}}
        settings |= {name: value for name, value in changes.items() if name in settings}
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("etc/passwd"))
            program = Path("/bin/true").resolve().read_bytes()
            entry = tarfile.TarInfo(changes.get("program", "usr/bin/millrace"))
            entry.size = len(program)
            archive.addfile(entry, io.BytesIO(program))
        configuration = {"architecture": changes.get("architecture", HERE.debian), "config": settings}
        manifest = [{"Config": "config.json", "RepoTags": [changes.get("tag", "millrace:1.0.0")], "Layers": ["a/layer.tar"]}]
        file = self.path / "millrace-1.0.0-x86_64-container.tar.xz"
        with tarfile.open(file, "w:xz") as archive:
            texts = {"manifest.json": manifest, "config.json": configuration}
            files = {name: json.dumps(content).encode() for name, content in texts.items()}
            for name, data in {**files, "a/layer.tar": layer.getvalue()}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return file

    def test_an_image_that_differs_from_the_release_is_refused(self):
        for message, changes in {
            "millrace --version prints": {},  # Everything else is right.
            "has the image millrace:0.9.0": {"tag": "millrace:0.9.0"},
            "is for mips": {"architecture": "mips"},
            "runs as root": {"User": ""},
            "has no health check": {"Healthcheck": None},
            "has no usr/bin/millrace": {"program": "bin/millrace"},
        }.items():
            self.wrong(message, check.container, self.image(**changes), "1.0.0", HERE)

    def test_the_image_of_a_release_has_its_program(self):
        text = artifacts.containerfile()
        self.assertTrue(text.startswith("FROM docker.io/library/debian:"), text)
        self.assertNotIn("--from", text)
        self.assertIn("COPY millrace /usr/bin/millrace", text)

    def test_a_program_with_symbols_is_refused(self):
        source, file = self.path / "main.c", self.path / "main"
        source.write_text("int main(void) { return 0; }\n")
        tools.run("cc", "-o", file, source)
        self.wrong("main has symbols", check.elf, file, HERE)
        check.elf(file, artifacts.Target(HERE.machine, "amd64", "dev", host=True))
        tools.run("strip", file)
        check.elf(file, HERE)

    def test_a_checksum_that_is_wrong_or_of_no_file_is_refused(self):
        (self.path / "a").write_text("content")
        (self.path / "SHA256SUMS").write_text("00  a\n")
        self.wrong("another checksum", check.sums, self.path / "SHA256SUMS")
        (self.path / "SHA256SUMS").write_text("00  b\n")
        self.wrong("has a, b", check.sums, self.path / "SHA256SUMS")


if __name__ == "__main__":
    unittest.main()
