"""Programs that open storage through fsspec (pyarrow, pandas, zarr, PyTorch), and through a mount (Delta Lake)."""

import multiprocessing
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import PROGRAM
from millrace_nfs.fsspec import MillraceFileSystem


@pytest.fixture
def fs(client, server):
    proto = "rdma" if "proto=rdma" in client.url else "tcp"
    return MillraceFileSystem("127.0.0.1", server.ports[proto], proto=proto)


def test_a_parquet_data_set_is_scanned(fs):
    pyarrow = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    rows = 200_000
    table = pyarrow.table({"n": range(rows), "group": [n % 4 for n in range(rows)], "text": [f"row {n}" for n in range(rows)]})
    dataset.write_dataset(table, "/data/table", filesystem=fs, format="parquet", partitioning=["group"])
    read = dataset.dataset("/data/table", filesystem=fs, format="parquet", partitioning=["group"])
    assert read.count_rows() == rows
    found = read.to_table(columns=["n", "text"], filter=(dataset.field("group") == 3) & (dataset.field("n") > rows - 10))
    assert sorted(found.to_pylist(), key=lambda row: row["n"]) == [
        {"n": n, "text": f"row {n}"} for n in range(rows - 9, rows) if n % 4 == 3
    ]


def test_pandas_reads_and_writes(fs, server):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"city": ["Bern", "Oslo"] * 5000, "sales": range(10_000)})
    # pandas takes nfs:// for a URL of urllib.
    url = f"nfs+{fs.storage_options['proto']}://127.0.0.1:{fs.port}/data/frames"
    frame.to_csv(f"{url}/table.csv", index=False)
    frame.to_parquet(f"{url}/table.parquet")
    pandas.testing.assert_frame_equal(pandas.read_csv(f"{url}/table.csv"), frame)
    read = pandas.read_parquet(f"{url}/table.parquet")
    assert read["sales"].tolist() == frame["sales"].tolist() and read["city"].tolist() == frame["city"].tolist()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_zarr_array(fs, kind):
    zarr = pytest.importorskip("zarr", minversion="3")
    numpy = pytest.importorskip("numpy")
    from millrace_nfs.fsspec import AsyncMillraceFileSystem

    if kind == "async":
        fs = AsyncMillraceFileSystem("127.0.0.1", fs.port, asynchronous=True, proto=fs.storage_options["proto"])
        store = zarr.storage.FsspecStore(fs, path="/data/array")
    else:
        url = f"nfs://127.0.0.1:{fs.port}/data/array"
        store = zarr.storage.FsspecStore.from_url(url, storage_options={"proto": fs.storage_options["proto"]})
    values = numpy.arange(1_000_000, dtype="int64").reshape(1000, 1000)
    array = zarr.create_array(store=store, shape=values.shape, chunks=(100, 250), dtype=values.dtype)
    array[:] = values
    array[5, 7] = -1
    values[5, 7] = -1
    read = zarr.open_array(store=store, mode="r")
    assert (read[:] == values).all() and (read[95:105, 240:260] == values[95:105, 240:260]).all()


@pytest.fixture
def mounts(server, tmp_path):
    """A directory of the export on two mounts, which are two clients."""
    points = [tmp_path / "one", tmp_path / "other"]
    processes = []
    for point in points:
        point.mkdir()
        command = [PROGRAM, "mount", server.url(), point, "--log", "error"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    is_mounted = all([process.stdout.readline() for process in processes])
    if is_mounted:
        yield [point / tmp_path.name for point in points]
    for process in processes:
        process.terminate()
        process.wait()
        process.stdout.close()
    if not is_mounted:
        pytest.skip("FUSE cannot mount here")


def test_no_commit_to_a_delta_table_is_lost(mounts):
    # It has its own storage in Rust, and takes no file system of fsspec.
    deltalake = pytest.importorskip("deltalake")
    pyarrow = pytest.importorskip("pyarrow")
    deltalake.write_deltalake(mounts[0], pyarrow.table({"n": [-1]}))

    def append(n):
        rows = pyarrow.table({"n": [n]})
        deltalake.write_deltalake(mounts[n % 2], rows, mode="append")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(append, range(20)))
    for point in mounts:
        table = deltalake.DeltaTable(point)
        assert table.version() == 20
        assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == list(range(-1, 20))


def _rank(rank, size, directory, url, save):
    """A process of a distributed program: saves its part of a checkpoint, or loads and compares it."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

    dist.init_process_group("gloo", init_method=f"file://{directory}/{save}", rank=rank, world_size=4)
    names = [f"layer{rank}.{n}" for n in range(4)]
    wanted = {name: torch.arange(size // 16, dtype=torch.float32) + rank * 10 + n for n, name in enumerate(names)}
    if save:
        # The file is stable when it is closed, and torch 2.6 cannot sync a file without a descriptor.
        checkpoint.save(wanted, storage_writer=FsspecWriter(url, sync_files=False))
    else:
        state = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        checkpoint.load(state, storage_reader=FsspecReader(url))
        assert all(torch.equal(state[name], wanted[name]) for name in names)
    dist.destroy_process_group()


@pytest.mark.long
def test_a_distributed_checkpoint_of_2_gb(tmp_path):
    pytest.importorskip("torch")
    from conftest import Server

    server = Server(tmp_path, size="4GiB")
    try:
        context = multiprocessing.get_context("spawn")
        # FsspecWriter of torch 2.6 has no storage options.
        url = f"nfs+tcp://127.0.0.1:{server.ports['tcp']}/data/checkpoint"
        for save in (True, False):
            # 4 processes with 4 tensors each of 4-byte numbers: 2 GB.
            arguments = [(rank, 500_000_000, tmp_path, url, save) for rank in range(4)]
            ranks = [context.Process(target=_rank, args=one) for one in arguments]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            assert [rank.exitcode for rank in ranks] == [0] * 4
        size = MillraceFileSystem("127.0.0.1", server.ports["tcp"], proto="tcp").du("/data/checkpoint")
        assert size >= 2_000_000_000
    finally:
        server.stop()
