"""Servers for the tests, which are `millrace serve` as users start it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

import millrace_nfs

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("MILLRACE_PROGRAM", ROOT / "target" / "debug" / "millrace")


CONFIGURATION = """
listen_rdma = ["127.0.0.1:0"]
listen_tcp = ["127.0.0.1:0"]
control = "{control}"
[[export]]
name = "/data"
backend = "memory:{size}"
[[export]]
name = "/local"
backend = "local:{directory}"
"""


class Server:
    """A server with a memory export /data, and a local directory /local, on free ports."""

    def __init__(self, directory, size="2GiB"):
        self.directory = directory
        os.chmod(directory, 0o777)  # The server maps uid 0 of clients to the anonymous user.
        configuration = directory.with_name(directory.name + ".toml")
        self.control = directory.with_name(directory.name + ".control")
        configuration.write_text(CONFIGURATION.format(size=size, directory=directory, control=self.control))
        command = [PROGRAM, "serve", "--config", configuration, "--grace", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline().split()
        assert ready[:1] == ["ready"], ready
        self.ports = {name: address.rsplit(":", 1)[1] for name, address in (word.split("=") for word in ready[1:])}

    def url(self, path="/data", proto="tcp", **options):
        query = "&".join(f"{name}={value}" for name, value in {"proto": proto, **options}.items())
        return f"nfs://127.0.0.1:{self.ports[proto]}{path}?{query}"

    def clients(self):
        """The NFSv4 clients that have not ended, one line each."""
        command = [PROGRAM, "state", "--json", "--socket", self.control]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("export"))
    yield server
    server.stop()


@pytest.fixture(params=["rdma", "tcp"])
def url(request, server):
    return server.url(proto=request.param)


@pytest.fixture
def client(url):
    with millrace_nfs.Client(url) as client:
        for entry in list(client.scandir()):
            (client.rmtree if entry.stat.is_dir() else client.unlink)(entry.name)
        yield client
