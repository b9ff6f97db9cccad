"""The programs of crates/python/examples print what they should."""

import importlib.util
import os
import subprocess
import sys

import pytest

from conftest import ROOT

EXAMPLES = {
    "pandas": "12 ['Bern', 'Oslo']\n",
    "polars": "12\n['Bern']\n",
    "duckdb": "[(0, 500), (1, 500), (2, 500), (3, 500)]\n",
    "dask": "4 [124500, 124750, 125000, 125250]\n",
    "zarr": f"{list(range(999_990, 1_000_000))}\n",
    "pyiceberg": "[7, 7] 2\n['Bern', 'Oslo']\n",
    "torch": "499500.0\n" * 3,
    "datasets": "1000 {'text': 'line 999'}\n",
}


@pytest.mark.parametrize("package", EXAMPLES)
def test_an_example_prints_its_result(client, server, package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -r crates/python/tests/requirements-data.txt")
    proto = "rdma" if "proto=rdma" in client.url else "tcp"
    url = f"nfs+{proto}://127.0.0.1:{server.ports[proto]}/data"
    program = [sys.executable, ROOT / "crates" / "python" / "examples" / f"with_{package}.py", url]
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    assert done.stdout == EXAMPLES[package], done.stderr


def test_each_example_is_tested():
    names = {path.stem for path in (ROOT / "crates" / "python" / "examples").glob("*.py")}
    assert names == {f"with_{package}" for package in EXAMPLES}
