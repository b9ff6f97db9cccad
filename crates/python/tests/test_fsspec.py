"""The file systems for fsspec: fsspec's abstract tests, and what these do not cover."""

import asyncio
import io
import multiprocessing
import pickle
import re
import uuid
from datetime import datetime, timedelta, timezone

import pytest

fsspec = pytest.importorskip("fsspec")

from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.tests import abstract

import millrace_nfs
from millrace_nfs._exports import split_url
from millrace_nfs.fsspec import AsyncMillraceFileSystem, MillraceFile, MillraceFileSystem
from test_client import MIB, pattern


class Fixtures(abstract.AbstractFixtures):
    kind = MillraceFileSystem

    @pytest.fixture
    def fs(self, server):
        return self.kind("127.0.0.1", server.ports["tcp"], proto="tcp")

    @pytest.fixture
    def fs_path(self, fs):
        path = f"/data/{uuid.uuid4().hex}"
        fs.makedirs(path)
        yield path
        fs.rm(path, recursive=True)

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path):
        return make_path_posix(str(tmp_path))

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class AsyncFixtures(Fixtures):
    kind = AsyncMillraceFileSystem


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestAsyncCopy(abstract.AbstractCopyTests, AsyncFixtures):
    pass


class TestAsyncGet(abstract.AbstractGetTests, AsyncFixtures):
    pass


class TestAsyncPut(abstract.AbstractPutTests, AsyncFixtures):
    pass


class TestAsyncOpen(abstract.AbstractOpenTests, AsyncFixtures):
    pass


class TestAsyncPipe(abstract.AbstractPipeTests, AsyncFixtures):
    pass


@pytest.fixture(params=[MillraceFileSystem, AsyncMillraceFileSystem])
def fs(request, client, server):
    proto = "rdma" if "proto=rdma" in client.url else "tcp"
    return request.param("127.0.0.1", server.ports[proto], proto=proto)


def test_urls():
    assert split_url("nfs://host/a/b") == ({"host": "host"}, "/a/b")
    assert split_url("nfs+rdma://[::1]:9/a/") == ({"proto": "rdma", "host": "[::1]", "port": 9}, "/a")
    assert split_url("nfs://h/a?proto=tcp&noresvport") == ({"host": "h", "proto": "tcp", "resvport": False}, "/a")
    tls = "nfs://h/a?xprtsec=mtls&tls_ca=/a%20b%26c.pem"
    assert split_url(tls) == ({"host": "h", "xprtsec": "mtls", "tls_ca": "/a b&c.pem"}, "/a")
    assert split_url("nfs://h/a?.csv") == ({"host": "h"}, "/a?.csv")
    assert split_url("nfs://h/what?b=c") == ({"host": "h"}, "/what?b=c")
    assert split_url("/a/b/") == ({}, "/a/b") and split_url("") == ({}, "/")
    assert split_url("nfs+tcp://h/a?proto=tcp") == split_url("nfs+tcp://h/a?proto=auto") == split_url("nfs+tcp://h/a")
    with pytest.raises(ValueError, match=re.escape("write 'nfs+tcp://h/a?vers=3'")):
        split_url("nfs+tcp://h/a?proto=rdma&vers=3")
    with pytest.raises(ValueError, match="port"):
        split_url("nfs://host:x/a")
    with pytest.raises(ValueError, match="host"):
        MillraceFileSystem(skip_instance_cache=True)


def test_urls_open_files(client, server):
    data = pattern(MIB)
    client.write_bytes("file", data)
    for protocol, proto in (("nfs", "tcp"), ("nfs", "rdma"), ("nfs+rdma", "rdma"), ("nfs+tcp", "tcp")):
        options = f"?proto={proto}" if protocol == "nfs" else ""
        url = f"{protocol}://127.0.0.1:{server.ports[proto]}/data/file{options}"
        with fsspec.open(url) as file:
            assert file.read() == data
        fs, path = fsspec.core.url_to_fs(url)
        assert isinstance(fs, MillraceFileSystem) and path == "/data/file"
    files = fsspec.open_files(f"nfs://127.0.0.1:{server.ports['tcp']}/data/f?l*", proto="tcp")
    assert [file.path for file in files] == ["/data/file"]


@pytest.mark.parametrize("proto", ["rdma", "tcp"])
def test_the_protocol_states_the_transport(client, server, proto):
    client.write_bytes("file", b"x")
    # The port has this transport only.
    fs = fsspec.filesystem(f"nfs+{proto}", host="127.0.0.1", port=server.ports[proto])
    for one in (fs, pickle.loads(pickle.dumps(fs)), fsspec.AbstractFileSystem.from_json(fs.to_json())):
        assert one.cat("/data/file") == b"x" and f"proto={proto}" in one._exports.url("/data")
    assert fsspec.filesystem(f"nfs+{proto}", host="h", proto="auto")._exports.url("/a") == f"nfs://h/a?proto={proto}"
    other = {"rdma": "tcp", "tcp": "rdma"}[proto]
    with pytest.raises(ValueError, match=re.escape(f"use nfs+{other}")):
        fsspec.filesystem(f"nfs+{proto}", host="127.0.0.1", proto=other)


def test_exports_are_directories(fs):
    assert [one["name"] for one in fs.ls("/")] == ["/data", "/local"]
    assert fs.isdir("/") and fs.isdir("/data") and not fs.exists("/other")
    with pytest.raises(FileNotFoundError):
        fs.ls("/other/path")
    fs.pipe("/local/file", b"x")
    fs.pipe("/data/file", b"x")
    assert sorted(fs.find("/")) == ["/data/file", "/local/file"]
    fs.mv("/local/file", "/data/moved")
    assert fs.cat("/data/moved") == b"x" and not fs.exists("/local/file")
    assert fs.unstrip_protocol("/data/moved").startswith("nfs://127.0.0.1:")


def test_errors_have_the_path_at_the_server(fs, tmp_path):
    fs.pipe("/data/dir/file", b"x")
    cases = [
        ("/data/dir/none.csv", lambda: fs.cat_file("/data/dir/none.csv")),
        ("/data/dir/none.csv", lambda: fs.open("/data/dir/none.csv")),
        ("/data/dir/none.csv", lambda: fs.info("nfs://127.0.0.1/data/dir/none.csv/")),
        ("/data/dir/none", lambda: fs.ls("/data/dir/none")),
        ("/data", lambda: fs.cat("/data")),
        ("/data/dir", lambda: fs.cat_ranges(["/data/dir"], 0, 4, on_error="raise")),
        ("/data/none", lambda: fs.cat_ranges(["/data/none"], 0, 4, on_error="raise")),
        ("/data/none", lambda: fs.get_file("/data/none", str(tmp_path / "back"))),
        ("/data/none", lambda: fs.rm("/data/none")),
        ("/data/dir", lambda: fs.pipe_file("/data/dir", b"x")),
        ("/data/dir", lambda: fs.makedirs("/data/dir")),
        ("/data", lambda: fs.makedirs("/data")),
        ("/data", lambda: fs.mkdir("/data")),
        ("/other/file", lambda: fs.cat_file("/other/file")),
    ]
    for path, call in cases:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.filename == path, caught.value
        assert str(caught.value).count(path) == 1, caught.value
    fs.makedirs("/data", exist_ok=True)
    fs.chmod("/data/dir/file", 0o600)
    other = type(fs)("127.0.0.1", fs.port, proto=fs.storage_options["proto"], uid=1234, gid=1234, gids=())
    for call in (lambda: other.cat_file("/data/dir/file"), lambda: other.cat_file("/data/dir/file", 0, 1)):
        with pytest.raises(PermissionError) as caught:
            call()
        assert caught.value.filename == "/data/dir/file"
    back = tmp_path / "back"
    back.mkdir()
    with pytest.raises(OSError) as caught:
        fs.get_file("/data/dir/file", str(back))
    assert (caught.value.filename, caught.value.filename2) == ("/data/dir/file", str(back))


def test_trees(fs):
    for name in ("a/1.csv", "a/2.csv", "a/b/3.csv", "a/b/4.txt"):
        fs.pipe(f"/data/{name}", name.encode())
    assert fs.glob("/data/**/*.csv") == ["/data/a/1.csv", "/data/a/2.csv", "/data/a/b/3.csv"]
    assert fs.find("/data/a/b") == ["/data/a/b/3.csv", "/data/a/b/4.txt"]
    assert list(fs.walk("/data/a")) == [("/data/a", ["b"], ["1.csv", "2.csv"]), ("/data/a/b", [], ["3.csv", "4.txt"])]
    assert fs.cat("/data/a/*.csv") == {"/data/a/1.csv": b"a/1.csv", "/data/a/2.csv": b"a/2.csv"}
    assert fs.du("/data/a") == 7 + 7 + 9 + 9
    fs.mv("/data/a/b", "/data/c")
    assert fs.find("/data/c") == ["/data/c/3.csv", "/data/c/4.txt"] and not fs.exists("/data/a/b")
    with pytest.raises(OSError):
        fs.rm("/data/c")
    fs.rm("/data/c", recursive=True)
    fs.mkdir("/data/d/e")
    with pytest.raises(FileExistsError):
        fs.mkdir("/data/d/e")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/data/x/y", create_parents=False)
    fs.rmdir("/data/d/e")
    assert fs.ls("/data/d") == [] and fs.ls("/data/a/1.csv", detail=False) == ["/data/a/1.csv"]


class Plain(MillraceFileSystem):
    """The file system with the methods of fsspec for trees."""

    base = fsspec.AbstractFileSystem
    find, walk, du = base.find, base.walk, base.du
    exists, isdir, isfile = base.exists, base.isdir, base.isfile


def test_trees_are_those_of_fsspec(fs, client):
    """What the native calls return is what the methods of the base class return, which read one directory at a time."""
    for name in ("a/1.csv", "a/b/3.csv", "a/b/c/5.csv", "z"):
        fs.pipe(f"/data/{name}", name.encode())
    client.symlink("1.csv", "a/link")
    client.symlink("none", "a/dangling")
    plain = Plain("127.0.0.1", fs.port, proto=fs.storage_options["proto"])
    for path in ("/", "/data", "/data/a/", "/data/z", "/data/none", "/data/z/below"):
        for options in ({}, {"maxdepth": 1}, {"maxdepth": 2, "withdirs": True}, {"withdirs": True, "detail": True}):
            assert fs.find(path, **options) == plain.find(path, **options), (path, options)
        if path != "/data/z":
            for options in ({}, {"maxdepth": 1}, {"maxdepth": 2, "topdown": False}, {"detail": True}):
                assert list(fs.walk(path, **options)) == list(plain.walk(path, **options)), (path, options)
        assert fs.du(path) == plain.du(path) and fs.du(path, total=False) == plain.du(path, total=False)
        for name in ("exists", "isdir", "isfile"):
            assert getattr(fs, name)(path) == getattr(plain, name)(path), (path, name)
    with pytest.raises(FileNotFoundError):
        list(fs.walk("/data/none", on_error="raise"))
    with pytest.raises(ValueError):
        fs.find("/data", maxdepth=0)
    # Links to directories are not followed, and dangling ones do not exist.
    client.symlink("..", "a/b/cycle")
    assert "/data/a/b/cycle" in fs.find("/data", withdirs=True) and "/data/a/b/cycle" not in fs.find("/data")
    assert fs.isdir("/data/a/b/cycle") and not fs.exists("/data/a/dangling")
    pruned = []
    for path, directories, _ in fs.walk("/data"):
        pruned.append(path)
        directories[:] = [name for name in directories if name != "b"]
    assert pruned == ["/data", "/data/a"]


def test_a_tree_is_read_with_few_calls(client, server):
    for n in range(20):
        client.makedirs(f"directory/{n}")
        client.touch(f"directory/{n}/file")
    fs = MillraceFileSystem("127.0.0.1", server.ports["tcp"], proto="tcp")
    connection, _ = fs._at("/data")
    before = connection.stats()["calls"]
    assert fs.du("/data") == 0 and len(fs.find("/data")) == 20
    assert connection.stats()["calls"] - before < 2 * 22 * 8


def test_modes_attributes_and_checksums(fs, client):
    fs.pipe("/data/file", b"x")
    fs.chmod("/data/file", 0o600)
    assert fs.info("/data/file")["mode"] & 0o777 == 0o600
    before = fs.checksum("/data/file")
    assert before == fs.checksum("/data/file")
    fs.pipe("/data/file", b"y")
    assert fs.checksum("/data/file") != before
    fs.setxattr("/data/file", "user.origin", b"1")
    assert fs.getxattr("/data/file", "user.origin") == b"1" and fs.listxattr("/data/file") == ["user.origin"]
    fs.removexattr("/data/file", "user.origin")
    assert fs.listxattr("/data/file") == []
    with pytest.raises(OSError) as caught:
        fs.getxattr("/data/file", "user.origin")
    assert caught.value.filename == "/data/file"


def test_info(fs, client):
    client.write_bytes("file", b"12345")
    client.symlink("file", "link")
    client.symlink("missing", "dangling")
    info = fs.info("/data/link")
    assert (info["type"], info["size"], info["islink"]) == ("file", 5, True)
    kinds = {one["name"]: (one["type"], one["islink"]) for one in fs.ls("/data")}
    assert kinds == {"/data/dangling": ("link", True), "/data/file": ("file", False), "/data/link": ("file", True)}
    for time in (fs.created("/data/file"), fs.modified("/data/file")):
        assert abs(datetime.now(timezone.utc) - time) < timedelta(minutes=5)


def test_links_in_a_list_are_resolved_together(client, server):
    client.write_bytes("file", b"x")
    for n in range(20):
        client.symlink("file", f"link{n}")
    options = {"proto": "tcp", "vers": "3", "skip_instance_cache": True}
    fs, other = (kind("127.0.0.1", server.ports["tcp"], **options) for kind in (MillraceFileSystem, AsyncMillraceFileSystem))
    assert fs.ls("/data") == other.ls("/data")
    assert sum(one["islink"] and one["type"] == "file" for one in fs.ls("/data")) == 20
    (one,), (two,) = fs._exports.clients(), other._exports.clients()

    async def calls():
        before = (await two.stats())["calls"]
        await other._ls("/data")
        return (await two.stats())["calls"] - before

    before = one.stats()["calls"]
    fs.ls("/data")
    assert one.stats()["calls"] - before == fsspec.asyn.sync(other.loop, calls)


def test_ranges(fs):
    data = {f"/data/{n}": pattern(300_000, n) for n in range(3)}
    fs.pipe(data)
    paths = ["/data/0", "/data/1", "/data/2", "/data/0", "/data/1", "/data/2", "/data/0"]
    starts = [0, 100, -10, None, 299_999, 5, 200]
    ends = [10, 200_000, None, None, 400_000, -5, 100]
    wanted = [data[path][start:end] for path, start, end in zip(paths, starts, ends)]
    assert fs.cat_ranges(paths, starts, ends) == wanted
    assert fs.cat_ranges(paths, 5, 9) == [data[path][5:9] for path in paths]
    good, missing, directory = fs.cat_ranges(["/data/0", "/data/missing", "/data"], 0, 4)
    assert good == data["/data/0"][:4]
    assert isinstance(missing, FileNotFoundError) and isinstance(directory, IsADirectoryError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["/data/missing"], 0, 4, on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges(paths, [0], 4)
    with pytest.raises(TypeError):
        fs.cat_ranges("/data/0", 0, 4)
    assert fs.cat_file("/data/1", -7) == data["/data/1"][-7:] and fs.head("/data/1", 3) == data["/data/1"][:3]


def test_open_reads_and_writes(fs):
    data = pattern(5 * MIB + 1)
    with fs.open("/data/new/file", "wb") as file:
        assert isinstance(file, MillraceFile)
        for start in range(0, len(data), 70_001):
            file.write(data[start : start + 70_001])
        assert file.tell() == len(data)
    with fs.open("/data/new/file") as file:
        assert file.size == len(data) and file.read(3) == data[:3]
        assert file.seek(-5, 2) == len(data) - 5 and file.read() == data[-5:]
        file.seek(MIB)
        buffer = bytearray(2 * MIB)
        assert file.readinto(buffer) == 2 * MIB and buffer == data[MIB : 3 * MIB]
    with fs.open("/data/new/file", "ab") as file:
        assert file.tell() in (0, len(data))
        file.write(b"end")
    with fs.open("/data/new/file", cache_type="readahead", block_size=100_000) as file:
        assert file.read() == data + b"end"
    with pytest.raises(FileExistsError):
        fs.open("/data/new/file", "xb")
    with fs.open("/data/lines", "w") as file:
        file.write("first\nsecond\n")
    with fs.open("/data/lines") as file:
        assert list(file) == [b"first\n", b"second\n"]
    with fs.open("/data/lines", "rt") as file:
        assert file.read() == "first\nsecond\n"
    with pytest.raises(ValueError):
        file.read()


def test_transactions(fs):
    with fs.transaction:
        with fs.open("/data/t/file", "wb") as file:
            file.write(b"data")
        assert not fs.exists("/data/t/file")
    assert fs.cat("/data/t/file") == b"data"
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open("/data/t/other", "wb") as file:
            file.write(b"data")
        1 // 0
    assert fs.find("/data/t") == ["/data/t/file"]


def test_copies_report_progress(fs, tmp_path):
    data = pattern(3 * MIB)
    (tmp_path / "local").write_bytes(data)
    callback = Callback()
    fs.put_file(str(tmp_path / "local"), "/data/a/remote", callback=callback)
    assert (callback.size, callback.value) == (len(data), len(data))
    callback = Callback()
    fs.get_file("/data/a/remote", str(tmp_path / "x" / "back"), callback=callback)
    assert (callback.size, callback.value) == (len(data), len(data))
    assert (tmp_path / "x" / "back").read_bytes() == data
    with pytest.raises(FileExistsError):
        fs.put_file(str(tmp_path / "local"), "/data/a/remote", mode="create")


class Recording(Callback):
    """Records the children of a copy by their source, and all values."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.values, self.children = [], {}

    def call(self, hook_name=None, **kwargs):
        self.values.append(self.value)

    def branched(self, path_1, path_2, **kwargs):
        return self.children.setdefault(path_1.rpartition("/")[2], Recording())


def test_copies_of_trees_report_progress(fs, tmp_path):
    sizes = {"a": 3 * MIB + 1, "b": 0, "c": 70_000}
    (tmp_path / "tree").mkdir()
    for name, size in sizes.items():
        (tmp_path / "tree" / name).write_bytes(pattern(size))
    put, get = Recording(), Recording()
    fs.put(f"{tmp_path}/tree", "/data/tree", recursive=True, callback=put)
    fs.get("/data/tree", f"{tmp_path}/back", recursive=True, callback=get)
    assert {path.name: path.stat().st_size for path in (tmp_path / "back").iterdir()} == sizes
    for whole in (put, get):
        assert whole.size == whole.value >= len(sizes)
        files = {name: child for name, child in whole.children.items() if name in sizes}
        assert {name: (child.size, child.value) for name, child in files.items()} == {n: (s, s) for n, s in sizes.items()}
        assert all(child.values == sorted(child.values) for child in files.values())


def test_copies_without_a_callback_report_nothing(fs, tmp_path, monkeypatch):
    (tmp_path / "local").write_bytes(b"data")

    def report(value):
        raise AssertionError(f"nothing receives the report of {value} bytes")

    monkeypatch.setattr(DEFAULT_CALLBACK, "absolute_update", report)
    fs.put_file(str(tmp_path / "local"), "/data/remote")
    fs.get_file("/data/remote", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"data"


def test_touch_and_modes_of_pipe(fs, server):
    fs.touch("/data/file")
    assert fs.cat("/data/file") == b""
    fs.pipe_file("/data/file", b"x")
    before = fs.ukey("/data/file")
    fs.touch("/data/file", truncate=False)
    assert fs.cat("/data/file") == b"x" and fs.ukey("/data/file") != before
    fs.touch("/data/new/file", truncate=False)
    assert fs.cat("/data/new/file") == b""
    with pytest.raises(FileExistsError):
        fs.pipe_file("/data/file", b"y", mode="create")
    if isinstance(fs, MillraceFileSystem):
        fs.get_file("/data/file", buffer := io.BytesIO())
        assert buffer.getvalue() == b"x"
    strict = MillraceFileSystem("127.0.0.1", server.ports["tcp"], proto="tcp", auto_mkdir=False)
    with pytest.raises(FileNotFoundError):
        strict.pipe_file("/data/missing/file", b"x")


def test_pickles(fs):
    fs.pipe("/data/file", b"0123456789")
    other = pickle.loads(pickle.dumps(fs))
    assert other.cat("/data/file") == b"0123456789"
    with fs.open("/data/file") as file:
        file.read(3)
        with pickle.loads(pickle.dumps(file)) as copy:
            assert copy.read() == b"3456789"
    again = fsspec.AbstractFileSystem.from_json(fs.to_json())
    assert again.cat("/data/file") == b"0123456789"


def test_async_calls_run_together(client, server):
    data = [pattern(200_000, n) for n in range(20)]

    async def main():
        fs = AsyncMillraceFileSystem("127.0.0.1", server.ports["tcp"], proto="tcp", asynchronous=True)
        await asyncio.gather(*(fs._pipe_file(f"/data/dir/{n}", data[n]) for n in range(20)))
        assert await asyncio.gather(*(fs._cat_file(f"/data/dir/{n}") for n in range(20))) == data
        assert len(await fs._find("/data")) == 20
        async with await fs.open_async("/data/dir/0") as file:
            assert await file.read() == data[0]

    asyncio.run(main())


class Dataset:
    """Reads files as a Dataset of PyTorch does in the workers of a DataLoader."""

    def __init__(self, fs, paths):
        self.fs, self.paths = fs, paths

    def __getitem__(self, index):
        with self.fs.open(self.paths[index]) as file:
            return file.read()


def _load(dataset, indices, results):
    results.put({index: dataset[index] for index in indices})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader(client, server, method):
    data = {f"/data/{n}": pattern(50_000 + n, n) for n in range(40)}
    fs = MillraceFileSystem("127.0.0.1", server.ports["tcp"], proto="tcp")
    fs.pipe(data)
    dataset = Dataset(fs, list(data))
    assert dataset[0] == data["/data/0"], "the parent has connections before it forks"
    context = multiprocessing.get_context(method)
    results = context.Queue()
    workers = [context.Process(target=_load, args=(dataset, range(n, 40, 8), results)) for n in range(8)]
    for worker in workers:
        worker.start()
    found = {}
    for _ in workers:
        found.update(results.get(timeout=120))
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert [found[n] for n in range(40)] == list(data.values())
    assert dataset[1] == data["/data/1"]


def test_an_unreachable_server():
    fs = MillraceFileSystem("127.0.0.1", 1, proto="tcp", retry=0, skip_instance_cache=True)
    with pytest.raises(ConnectionRefusedError):
        fs.ls("/data")
    assert millrace_nfs.__version__
