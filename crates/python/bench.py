#!/usr/bin/env python3
"""Compares reads of the Python package with those of the Rust client, on loopback.

    cargo build --release -p millrace-cli -p millrace-python --example baseline --bin millrace
    crates/python/build && pip install --force-reinstall --no-deps target/wheels/millrace_nfs-*.whl fsspec
    python crates/python/bench.py [--proto tcp] [--size 1024] [--rounds 9]

A round reads 64 MiB in ranges of 1 MiB and of 64 KiB with cat_ranges, and a whole file with fsspec.open().read(), each
in turn with the Rust client, which does not copy the data. It prints the medians, and the median of the ratios. With
GLIBC_TUNABLES=glibc.malloc.perturb=0, which has no effect of its own, the package does not change which memory the C
library keeps (docs/guide/python.md).
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

import fsspec

import millrace_nfs
from millrace_nfs.fsspec import MillraceFileSystem

MIB = 1 << 20
TOTAL = 64 * MIB


def target():
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"]
    return Path(json.loads(subprocess.check_output(command, cwd=Path(__file__).parent))["target_directory"])


class Baseline:
    """The Rust client."""

    def __init__(self, program, url, path):
        self.process = subprocess.Popen([program, url, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        seconds, count = self.process.stdout.readline().split()
        return float(seconds), int(count)


def timed(call):
    start = time.perf_counter()
    count = call()
    return time.perf_counter() - start, count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--proto", choices=["tcp", "rdma"], default="tcp")
    parser.add_argument("--size", type=int, default=1024, help="size of the file in MiB (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--program", help="the program millrace (default: the release build)")
    parser.add_argument("--baseline", help="the program of examples/baseline.rs (default: the release build)")
    arguments = parser.parse_args()
    programs = target() / "release"
    command = [arguments.program or programs / "millrace", "--log", "warn", "serve"]
    command += ["--export", f"/data=memory:{arguments.size + 64}MiB"]
    command += ["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0", "--grace", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        words = dict(word.split("=") for word in server.stdout.readline().split()[1:])
        port = int(words[arguments.proto].rsplit(":", 1)[1])
        measure(arguments, programs, f"nfs://127.0.0.1:{port}/data", port)
    finally:
        server.kill()


def measure(arguments, programs, url, port):
    size, proto = arguments.size * MIB, arguments.proto
    with millrace_nfs.Client(f"{url}?proto={proto}") as client, client.open("file", "wb") as file:
        for _ in range(arguments.size):
            file.write(bytes(range(256)) * 4096)
    rust = Baseline(arguments.baseline or programs / "examples" / "baseline", f"{url}?proto={proto}", "file")
    fs = MillraceFileSystem("127.0.0.1", port, proto=proto)

    def ranges(length):
        count = TOTAL // length
        starts = [size // count * (count - 1 - n) for n in range(count)]
        ends = [start + length for start in starts]
        return sum(map(len, fs.cat_ranges(["/data/file"] * count, starts, ends, on_error="raise")))

    def whole():
        with fsspec.open(f"{url}/file", proto=proto) as file:
            return len(file.read())

    python = {str(MIB): lambda: ranges(MIB), str(MIB // 16): lambda: ranges(MIB // 16), "whole": whole}
    for name, call in python.items():
        times = {"rust": [], "python": []}
        for _ in range(arguments.rounds + 1):  # The first round is not counted.
            for who, run in (("rust", lambda: rust.run(name)), ("python", lambda: timed(call))):
                seconds, count = run()
                assert count == (size if name == "whole" else TOTAL), (who, count)
                times[who].append(seconds)
        label = name if name == "whole" else f"ranges of {int(name) >> 10} KiB"
        ratios = [r / p for r, p in list(zip(times["rust"], times["python"]))[1:]]
        rates = {who: count / statistics.median(seconds[1:]) / 1e9 for who, seconds in times.items()}
        print(
            f"{proto} {label}: Rust {rates['rust']:.2f} GB/s, Python {rates['python']:.2f} GB/s, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
