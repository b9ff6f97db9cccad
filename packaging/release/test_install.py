#!/usr/bin/env python3
"""Tests packaging/release/install.sh with releases whose program is a shell script."""

import hashlib
import http.server
import io
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import threading
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "install.sh"
FILES = {
    "usr/share/man/man1/millrace.1": "manual",
    "usr/share/bash-completion/completions/millrace": "bash",
    "usr/share/fish/vendor_completions.d/millrace.fish": "fish",
    "usr/share/zsh/vendor-completions/_millrace": "zsh",
    "usr/share/doc/millrace/third-party-licences.txt": "licences",
    "LICENSE-MIT": "MIT",
    "LICENSE-APACHE": "Apache",
    "etc/millrace.toml": "configuration",
}


class Install(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = Path(scratch.name)
        self.release, self.prefix = self.path / "release", self.path / "prefix"
        self.release.mkdir()
        for machine in ("x86_64", "aarch64"):
            self.archive(machine, f"echo millrace 1.0.0 of {machine}")
        self.write_sums()

    def archive(self, machine, program):
        top = f"millrace-1.0.0-{machine}-linux"
        with tarfile.open(self.release / f"{top}.tar.xz", "w:xz") as archive:
            for name, text in {**FILES, "usr/bin/millrace": f"#!/bin/sh\n{program}\n"}.items():
                entry = tarfile.TarInfo(f"{top}/{name}")
                entry.size, entry.mode = len(text), 0o755 if name == "usr/bin/millrace" else 0o644
                archive.addfile(entry, io.BytesIO(text.encode()))

    def write_sums(self):
        files = sorted(self.release.glob("*.tar.xz"))
        lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        (self.release / "SHA256SUMS").write_text("".join(lines))

    def install(self, *arguments, **environment):
        environment = {**os.environ, "no_proxy": "127.0.0.1", "HOME": str(self.path / "home"), **environment}
        command = ["sh", SCRIPT, *arguments]
        return subprocess.run(command, cwd=self.path, env=environment, text=True, capture_output=True)

    def installed(self, source, machine=platform.machine(), **environment):
        done = self.install(source, "--prefix", self.prefix, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"millrace 1.0.0 of {machine} is installed in {self.prefix}/bin", done.stdout)
        self.assertIn(machine, subprocess.check_output([self.prefix / "bin/millrace"], text=True))

    def refused(self, message, *arguments, **environment):
        done = self.install(*arguments, "--prefix", self.prefix, **environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(message, done.stderr)
        self.assertFalse((self.prefix / "bin/millrace").exists())

    def host(self, system, machine):
        """The variables with which `uname` answers so."""
        programs = self.path / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "uname").write_text(f"#!/bin/sh\n[ $1 = -s ] && echo {system} || echo {machine}\n")
        (programs / "uname").chmod(0o755)
        return {"PATH": f"{programs}:{os.environ['PATH']}"}

    def test_a_directory_or_a_file_url_is_a_source(self):
        self.installed(self.release)
        files = {str(file.relative_to(self.prefix)) for file in self.prefix.rglob("*") if file.is_file()}
        self.assertEqual(
            files,
            {
                "bin/millrace",
                "share/man/man1/millrace.1",
                "share/bash-completion/completions/millrace",
                "share/fish/vendor_completions.d/millrace.fish",
                "share/zsh/site-functions/_millrace",
                "share/doc/millrace/third-party-licences.txt",
                "share/doc/millrace/LICENSE-MIT",
                "share/doc/millrace/LICENSE-APACHE",
            },
        )
        shutil.rmtree(self.prefix)
        self.installed(f"file://{self.release}/")

    def test_a_url_is_a_source(self):
        handler = lambda *of: Quiet(*of, directory=self.release)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever).start()
            url = f"http://127.0.0.1:{server.server_address[1]}"
            try:
                self.installed(url)
                shutil.rmtree(self.prefix)
                self.refused(f"cannot download {url}/none/SHA256SUMS", f"{url}/none")
            finally:
                server.shutdown()

    def test_a_url_without_encryption_is_refused(self):
        self.refused("is not an https:// or file:// URL", "http://release.example/v1.0.0")
        self.refused("is not an https:// or file:// URL", "ftp://release.example/v1.0.0")

    def test_without_a_prefix_the_home_directory_is_used(self):
        programs = self.path / "programs"
        programs.mkdir()
        (programs / "id").write_text("#!/bin/sh\necho 1000\n")
        (programs / "id").chmod(0o755)
        done = self.install(self.release, PATH=f"{programs}:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 0, done.stderr)
        bin_directory = self.path / "home/.local/bin"
        self.assertTrue((bin_directory / "millrace").exists())
        self.assertIn(f"{bin_directory} is not in PATH", done.stdout)

    def test_an_archive_with_another_checksum_is_refused(self):
        with open(self.release / f"millrace-1.0.0-{platform.machine()}-linux.tar.xz", "ab") as file:
            file.write(b"\0\0\0\0")
        self.refused("has another checksum than SHA256SUMS states: nothing was installed", self.release)

    def test_a_release_without_checksums_or_archive_is_refused(self):
        (self.release / "SHA256SUMS").write_text("00  millrace-1.0.0.cdx.json\n")
        self.refused(f"SHA256SUMS lists no archive for {platform.machine()}", self.release)
        (self.release / "SHA256SUMS").unlink()
        self.refused("has no SHA256SUMS", self.release)

    def test_the_archive_of_the_machine_is_taken(self):
        for machine, archive in {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}.items():
            self.installed(self.release, archive, **self.host("Linux", machine))

    def test_a_host_without_a_program_is_refused(self):
        self.refused("a release has no program for riscv64", self.release, **self.host("Linux", "riscv64"))
        self.refused("millrace is for Linux, and this is Darwin", self.release, **self.host("Darwin", "arm64"))

    def test_a_program_that_does_not_run_replaces_nothing(self):
        self.installed(self.release)
        self.archive(platform.machine(), "exit 127")
        self.write_sums()
        done = self.install(self.release, "--prefix", self.prefix)
        self.assertIn("the program does not run here", done.stderr)
        self.assertIn("1.0.0", subprocess.check_output([self.prefix / "bin/millrace"], text=True))

    def test_wrong_arguments_are_refused(self):
        self.refused("sh install.sh FROM [--prefix DIRECTORY]")
        self.refused("unknown option --force", "--force", self.release)
        self.refused("is a second source", self.release, self.release)
        self.assertIn("--prefix has no directory", self.install(self.release, "--prefix").stderr)

    def test_a_script_that_arrives_in_part_does_nothing(self):
        text = SCRIPT.read_text()
        part = text[: text.rindex("main \"$@\"")]
        done = subprocess.run(["sh", "-s", self.release], input=part, cwd=self.path, text=True, capture_output=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


if __name__ == "__main__":
    unittest.main()
