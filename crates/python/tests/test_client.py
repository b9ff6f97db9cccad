"""The blocking client and its files, over RDMA (iWARP) and TCP."""

import errno
import gc
import hashlib
import io
import os
import pickle
import platform
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import millrace_nfs
from conftest import Server
from millrace_nfs._tree import pattern as pattern_of

MIB = 1 << 20


def pattern(size, seed=0):
    """Bytes that differ at each position: a wrong offset is found."""
    block = b"".join(hashlib.sha256(f"{seed}/{n}".encode()).digest() for n in range(2048))
    return (block * (size // len(block) + 1))[:size]


def script(text, *arguments, check=True, **options):
    """Runs a program in a new interpreter."""
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=check, **options)


@pytest.mark.parametrize("size", [0, 1, 511, 65_537, 3 * MIB + 7])
def test_a_whole_file_is_written_and_read(client, size):
    data = pattern(size)
    client.write_bytes("file", data)
    assert client.read_bytes("file") == data
    assert client.stat("file").st_size == size


def test_files_are_streams(client):
    data = pattern(5 * MIB + 3)
    with client.open("stream", "wb") as file:
        for start in range(0, len(data), 100_001):
            piece = data[start : start + 100_001]
            assert file.write(piece) == len(piece)
        assert file.tell() == len(data)
        file.flush()
        assert client.stat("stream").st_size == len(data)
    with client.open("stream") as file:
        assert file.read(10) == data[:10]
        assert file.seek(-7, os.SEEK_END) == len(data) - 7
        assert file.read() == data[-7:]
        assert file.read(1) == b""
        assert file.seek(1_000_003) == 1_000_003
        assert file.seek(5, os.SEEK_CUR) == 1_000_008
        assert file.read(4 * MIB) == data[1_000_008 : 1_000_008 + 4 * MIB]
    assert hashlib.sha256(client.read_bytes("stream")).digest() == hashlib.sha256(data).digest()


def test_reads_fill_buffers(client):
    data = pattern(2 * MIB + 5)
    client.write_bytes("file", data)
    with client.open("file") as file:
        buffer = bytearray(MIB)
        assert file.readinto(buffer) == MIB and buffer == data[:MIB]
        part = memoryview(buffer)[10:20]
        assert file.readinto(part) == 10
        assert buffer[10:20] == data[MIB : MIB + 10] and buffer[20:] == data[20:MIB]
        file.seek(2 * MIB)
        assert file.readinto(buffer) == 5 and buffer[:5] == data[-5:]
        assert file.readinto(buffer) == 0
        assert file.readinto(bytearray()) == 0


def test_reads_fill_numpy_arrays(client):
    numpy = pytest.importorskip("numpy")
    values = numpy.arange(300_000, dtype=numpy.float64).reshape(300, 1000)
    with client.open("array", "wb") as file:
        assert file.write(values) == values.nbytes
    result = numpy.zeros_like(values)
    with client.open("array") as file:
        assert file.readinto(result) == values.nbytes
        assert (result == values).all()
        file.seek(0)
        with pytest.raises(TypeError, match="contiguous"):
            file.readinto(result[:, ::2])
        result.setflags(write=False)
        with pytest.raises(TypeError, match="read-write"):
            file.readinto(result)


def test_buffers_that_cannot_be_filled(client):
    client.write_bytes("file", b"hello")
    with client.open("file") as file:
        for wrong in (b"read-only", "text", 7, None, memoryview(b"x")):
            with pytest.raises(TypeError):
                file.readinto(wrong)
        assert file.read() == b"hello", "the cursor has not moved"
    with client.open("file", "wb") as file:
        for wrong in ("text", 7, memoryview(b"abcdef")[::2]):
            with pytest.raises(TypeError):
                file.write(wrong)


def test_a_buffer_is_released(client):
    client.write_bytes("file", b"hello")
    buffer = bytearray(10)
    with client.open("file") as file:
        file.readinto(buffer)
        buffer.extend(b"it can be resized again")


def test_text_modes(client):
    with client.open("text", "wt", encoding="utf-8", newline="") as file:
        file.write("café\nsecond\n")
    with client.open("text", "rt", encoding="utf-8") as file:
        assert list(file) == ["café\n", "second\n"]
    with io.BufferedReader(client.open("text")) as lines:
        assert lines.readline() == "café\n".encode()
    # As with the built-in open, a mode without b is one of text.
    with client.open("text", "a", encoding="utf-8") as file:
        file.write("third\n")
    with client.open("text", "r", encoding="utf-8") as file:
        assert file.read() == "café\nsecond\nthird\n"
    with pytest.raises(ValueError, match="remove b"):
        client.open("text", "rb", encoding="utf-8")


def test_modes(client):
    with pytest.raises(FileNotFoundError):
        client.open("file", "rb+")
    with client.open("file", "xb") as file:
        file.write(b"12345")
        assert not file.readable() and file.writable()
        with pytest.raises(io.UnsupportedOperation):
            file.read()
    with pytest.raises(FileExistsError) as caught:
        client.open("file", "xb")
    assert caught.value.errno == errno.EEXIST and caught.value.filename == "file"
    with client.open("file", "ab") as file:
        file.write(b"678")
    with client.open("file", "rb+") as file:
        file.seek(2)
        file.write(b"xy")
        file.seek(0)
        assert file.read() == b"12xy5678"
        assert file.truncate(3) == 3
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
    assert client.read_bytes("file") == b"12x"
    for wrong in ("", "rw", "q", "r++", "rbt"):
        with pytest.raises(ValueError):
            client.open("file", wrong)


def test_names_and_attributes(client):
    client.makedirs("a/b")
    client.makedirs("a/b", exist_ok=True)
    with pytest.raises(FileExistsError):
        client.makedirs("a/b")
    for root in ("", "/", ".", "a/.."):
        client.makedirs(root, exist_ok=True)
        for create in (client.makedirs, client.mkdir):
            with pytest.raises(FileExistsError):
                create(root)
    client.write_bytes("a/file", b"123")
    client.symlink("file", "a/link")
    assert client.readlink("a/link") == "file"
    assert client.lstat("a/link").is_symlink() and client.stat("a/link").is_file()
    client.link("a/file", "a/second")
    assert client.stat("a/second").st_nlink == 2
    client.chmod("a/file", 0o640)
    client.utime("a/file", (None, 1_700_000_000_123_456_789))
    found = client.stat("a/file")
    assert found.st_mode == 0o100640 and found.st_mtime_ns == 1_700_000_000_123_456_789
    assert sorted(client.listdir("a")) == ["b", "file", "link", "second"]
    assert {entry.name: entry.stat.type for entry in client.scandir("a")}["b"] == "directory"
    client.rename("a/second", "a/third")
    assert client.exists("a/third") and not client.exists("a/second")
    assert client.copy("a/file", "a/copy") == 3 and client.read_bytes("a/copy") == b"123"
    client.unlink("a/copy")
    client.rmdir("a/b")
    client.rmtree("a")
    assert client.listdir() == []


def test_errors_are_those_of_os(client):
    client.mkdir("directory")
    client.write_bytes("directory/file", b"x")
    cases = [
        (FileNotFoundError, errno.ENOENT, lambda: client.read_bytes("missing")),
        (FileNotFoundError, errno.ENOENT, lambda: client.unlink("missing")),
        (FileExistsError, errno.EEXIST, lambda: client.mkdir("directory")),
        (IsADirectoryError, errno.EISDIR, lambda: client.open("directory")),
        (IsADirectoryError, errno.EISDIR, lambda: client.read_bytes("directory")),
        (NotADirectoryError, errno.ENOTDIR, lambda: client.listdir("directory/file")),
        (OSError, errno.ENOTEMPTY, lambda: client.rmdir("directory")),
        (OSError, errno.ENAMETOOLONG, lambda: client.mkdir("x" * 300)),
    ]
    for kind, number, call in cases:
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.errno == number, caught.value


def test_errors_have_the_path_once_and_no_name_of_another_version(server, tmp_path):
    (tmp_path / "local").write_bytes(b"x")
    for version in ("3", "4.2"):
        with millrace_nfs.Client(server.url(vers=version)) as client:
            client.makedirs("tree", exist_ok=True)
            local, back = tmp_path / "local", tmp_path / "back"
            cases = [
                (("dir/none", None), lambda: client.read_bytes("dir/none")),
                (("/none", None), lambda: client.open("/none")),
                (("", None), lambda: client.read_bytes("")),
                # As those of os.rename, errors of calls with two paths have both.
                ((local, "none/file"), lambda: client.put(local, "none/file")),
                ((tmp_path / "none", "file"), lambda: client.put(tmp_path / "none", "file")),
                (("none", back), lambda: client.get("none", back)),
                (("tree", back), lambda: client.get("tree", back)),
                (("tree/file", tmp_path / "none/back"), lambda: client.get("tree/file", tmp_path / "none/back")),
                (("none", "tree/new"), lambda: client.rename("none", "tree/new")),
                (("tree/file", "none/new"), lambda: client.link("tree/file", "none/new")),
                (("text", "none/new"), lambda: client.symlink("text", "none/new")),
                (("none", "tree/new"), lambda: client.copy("none", "tree/new")),
            ]
            client.write_bytes("tree/file", b"x")
            for (path, second), call in cases:
                with pytest.raises(OSError) as caught:
                    call()
                names = [None if one is None else str(one) for one in (path, second)]
                assert [caught.value.filename, caught.value.filename2] == names, caught.value
                text = str(caught.value)
                assert "NFS3" not in text and all(text.count(repr(name)) == 1 for name in names if name), text
                assert not any(name in caught.value.strerror for name in names if name and "/" in name), text
            assert isinstance(client.stat_all(["missing"])[0], FileNotFoundError)
            client.rmtree("tree")


def test_an_error_of_a_read_has_the_path(client):
    client.write_bytes("file", b"x")
    client.chmod("file", 0o600)
    with millrace_nfs.Client(client.url, uid=1234, gid=1234, gids=[]) as other:
        with pytest.raises(PermissionError) as caught:
            other.read_bytes("/file")
    assert caught.value.filename == "/file"


def test_an_error_of_an_open_file_has_its_path(server):
    # A server has no open files of NFSv3, so that a removed one is stale.
    with millrace_nfs.Client(server.url(vers="3")) as client:
        client.write_bytes("file", b"x")
        with client.open("file") as file:
            client.unlink("file")
            with pytest.raises(OSError) as caught:
                file.stat()
        assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, "file")


def test_trees(client):
    for path in ("a/1.csv", "a/b/2.csv", "a/b/c/3.csv", "a/b/c/.hidden.csv", "d/4.txt", "top"):
        client.makedirs(os.path.dirname(path), exist_ok=True)
        client.write_bytes(path, b"x")
    client.symlink("b", "a/link")
    client.symlink("..", "a/b/cycle")
    client.symlink("1.csv", "a/file")
    assert list(client.walk()) == [
        ("", ["a", "d"], ["top"]),
        ("a", ["b", "link"], ["1.csv", "file"]),
        ("a/b", ["c", "cycle"], ["2.csv"]),
        ("a/b/c", [], [".hidden.csv", "3.csv"]),
        ("d", [], ["4.txt"]),
    ]
    left = []
    for path, directories, _ in client.walk("/a/"):
        directories[:] = [name for name in directories if name != "c"]
        left.append(path)
    assert left == ["/a/", "/a/b"]
    assert client.glob("a/*.csv") == ["a/1.csv"] and client.glob("/a/[0-9].csv") == ["/a/1.csv"]
    assert client.glob("**/*.csv") == ["a/1.csv", "a/b/2.csv", "a/b/c/3.csv"]
    assert client.glob("a/b/c/.*") == ["a/b/c/.hidden.csv"] and client.glob("*/?.txt") == ["d/4.txt"]
    assert client.glob("a/b/**") == ["a/b/2.csv", "a/b/c", "a/b/c/3.csv", "a/b/cycle"]
    assert client.glob("top") == ["top"] and client.glob("none") == [] and client.glob("none/*") == []
    deep = "/".join(["d"] * 2000 + ["x"])
    assert pattern_of("**/**/x").matches([(deep, (), False)]) == [deep]
    assert pattern_of("**/**/**/**/**/**/y").matches([(deep, (), False)]) == []
    with pytest.raises(FileNotFoundError):
        client.walk("none")
    with pytest.raises(NotADirectoryError):
        client.walk("top")


def test_a_tree_of_many_directories(client):
    paths = [f"{a}/{b}/{c}" for a in range(3) for b in range(10) for c in range(5)]
    for directory in {path.rpartition("/")[0] for path in paths}:
        client.makedirs(directory)
    for path in paths:
        client.touch(path)
    before = client.stats()["calls"]
    assert sorted(f"{top}/{name}" for top, _, names in client.walk() for name in names) == paths
    assert client.stats()["calls"] - before < 34 * 8


def test_a_deep_tree_is_read_with_one_call_for_each_directory(server):
    levels = 60
    with millrace_nfs.Client(server.url(vers="3")) as client:
        client.makedirs("/".join(["deep"] * levels))
        before = client.stats()["calls"]
        assert len(list(client.walk("deep"))) == levels
        assert client.stats()["calls"] - before <= levels + 2
        client.rmtree("deep")


def test_a_tree_of_too_many_levels_is_an_error(server):
    """One that a server makes without an end."""
    parent = os.open(server.directory, os.O_RDONLY)
    for _ in range(2100):
        os.mkdir("d", 0o777, dir_fd=parent)
        below = os.open("d", os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = below
    try:
        with millrace_nfs.Client(server.url("/local")) as client:
            assert len(client.glob("d/d/d/*")) == 1
            with pytest.raises(OSError, match="levels") as caught:
                client.walk("d")
            assert caught.value.errno == errno.ENAMETOOLONG
    finally:
        os.close(parent)
        subprocess.run(["rm", "-r", server.directory / "d"], check=True)


def test_a_touch_sets_the_time_of_the_server(client):
    client.write_bytes("file", b"123")
    client.chmod("file", 0o666)
    old = 1_700_000_000_000_000_000
    client.utime("file", (old, old))
    with millrace_nfs.Client(client.url, uid=1234, gid=1234, gids=[]) as other:
        # Only the owner may set another time (utimensat(2)).
        with pytest.raises(PermissionError):
            other.utime("file", (old, old))
        before = other.stats()["calls"]
        other.touch("file")
        assert other.stats()["calls"] - before <= 2
    found = client.stat("file")
    assert found.st_atime_ns > old and found.st_mtime_ns > old and found.st_size == 3
    client.mkdir("directory")
    client.utime("directory", (old, old))
    client.touch("directory")
    assert client.stat("directory").st_mtime_ns > old


def test_rights_owners_and_sizes(client):
    client.write_bytes("file", b"12345")
    client.mkdir("directory")
    assert client.is_file("file") and not client.is_dir("file") and client.is_dir("directory") and not client.is_file("none")
    assert client.access("file", os.R_OK | os.W_OK) and client.access("file", os.F_OK)
    assert client.access("directory", os.R_OK | os.W_OK | os.X_OK) and not client.access("none", os.F_OK)
    client.chmod("file", 0o444)
    assert not client.access("file", os.X_OK)
    client.chmod("file", 0o644)
    client.truncate("file", 3)
    assert client.read_bytes("file") == b"123"
    found = client.stat("file")
    client.chown("file", -1, found.st_gid)
    client.chown("file", found.st_uid, -1, follow_symlinks=False)
    usage = client.disk_usage()
    assert usage.total >= usage.used + usage.free > 0 and usage.total == client.disk_usage("file").total
    client.touch("file")
    assert client.read_bytes("file") == b"123" and client.stat("file").st_mtime_ns >= found.st_mtime_ns
    client.touch("new")
    assert client.read_bytes("new") == b""
    with pytest.raises(FileExistsError):
        client.touch("new", exist_ok=False)
    client.write_text("text", "grün\n", encoding="latin-1", newline="\r\n")
    assert client.read_bytes("text") == b"gr\xfcn\r\n" and client.read_text("text", "latin-1") == "grün\n"


def test_extended_attributes(client):
    client.write_bytes("file", b"x")
    client.setxattr("file", "user.origin", b"sensor \0 7")
    assert client.getxattr("file", "user.origin") == b"sensor \0 7" and client.listxattr("file") == ["user.origin"]
    client.removexattr("file", "user.origin")
    for call in (lambda: client.getxattr("file", "user.origin"), lambda: client.removexattr("file", "user.origin")):
        with pytest.raises(OSError) as caught:
            call()
        assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, "file")
        assert "user.origin: the attribute does not exist" in caught.value.strerror
    with pytest.raises(OSError) as caught:
        client.setxattr("file", "trusted.x", b"")
    assert caught.value.errno == errno.EOPNOTSUPP


def test_locks_exclude_other_files(client):
    with client.open("file", "wb+") as one, client.open("file", "rb+") as other:
        assert one.lock(0, 100)
        assert not other.lock(50, 10, wait=False) and other.lock(100, wait=False)
        with pytest.raises(OSError):
            other.lock(0, 0)
        one.unlock(50, 10)
        assert other.lock(50, 10, exclusive=False, wait=False) and one.lock(50, 10, exclusive=False)
    with client.open("file", "rb+") as third:
        assert third.lock(), "closed files have no locks"


def test_a_file_is_unlocked_when_close_returns(client):
    client.write_bytes("file", b"x")
    with client.open("file", "rb+") as other:
        for mode in ("rb", "rb+") * 20:
            file = client.open("file", mode)
            assert file.lock()
            file.close()
            assert other.lock(wait=False)
            other.unlock()


def test_close_reports_that_a_file_is_not_unlocked(tmp_path):
    server = Server(tmp_path, size="64MiB")
    with millrace_nfs.Client(server.url(), retry=0) as client:
        client.write_bytes("file", b"x")
        file, other = client.open("file"), client.open("file")
        assert file.lock()
        server.stop()
        other.close()
        with pytest.raises(OSError) as caught:
            file.close()
        assert caught.value.filename == "file" and file.closed


def test_a_lock_waits_for_another_thread(client):
    client.write_bytes("file", b"0")
    counts = 5

    def count():
        with client.open("file", "rb+") as file:
            for _ in range(counts):
                file.lock()
                file.seek(0)
                number = int(file.read())
                file.seek(0)
                file.write(str(number + 1).encode())
                file.unlock()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.read_bytes("file") == str(4 * counts).encode()


def test_ranges_are_read_together(client):
    data = pattern(3 * MIB)
    client.write_bytes("file", data)
    handle = client.stat("file").handle
    ranges = [(handle, 0, 10), (handle, MIB - 5, 2 * MIB), (handle, 3 * MIB - 1, 100), (handle, 4 * MIB, 7), (handle, 5, 0)]
    ranges += [(bytes(8), 0, 4), (handle, 2**64 - 2, 4)]
    *good, stale, beyond = client.read_ranges(ranges)
    assert good == [data[:10], data[MIB - 5 : 3 * MIB - 5], data[-1:], b"", b""]
    assert isinstance(stale, OSError), stale
    assert beyond == b"" or isinstance(beyond, OSError)
    with pytest.raises(ValueError):
        client.read_ranges([(bytes(129), 0, 1)])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory of other C libraries is not set")
@pytest.mark.parametrize("length", [MIB, MIB // 16])
def test_the_memory_of_freed_objects_is_kept(client, length):
    client.write_bytes("file", bytes(MIB))
    program = f"""
        import sys
        import millrace_nfs

        with millrace_nfs.Client(sys.argv[1]) as client:
            handle = client.stat("file").handle
            for _ in range(3):
                client.read_ranges([(handle, 0, {length})] * {64 * MIB // length})
        heap = [line.split()[0].split("-") for line in open("/proc/self/maps") if "[heap]" in line]
        print(sum(int(end, 16) - int(start, 16) for start, end in heap) >> 20)
    """
    assert int(script(program, client.url).stdout) >= 64
    # The settings of the user apply.
    assert int(script(program, client.url, env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "131072"}).stdout) < 64


def test_put_and_get(client, tmp_path):
    data = pattern(9 * MIB + 1)
    (tmp_path / "local").write_bytes(data)
    reported = []
    assert client.put(tmp_path / "local", "remote", reported.append) == len(data)
    assert reported[-1] == len(data) and reported == sorted(reported)
    assert client.read_bytes("remote") == data
    assert client.get("remote", tmp_path / "back", reported.append) == len(data)
    assert (tmp_path / "back").read_bytes() == data
    with pytest.raises(FileNotFoundError):
        client.put(tmp_path / "missing", "remote")
    with pytest.raises(FileNotFoundError):
        client.get("missing", tmp_path / "other")
    with pytest.raises(IsADirectoryError):
        client.put(tmp_path, "remote")
    with pytest.raises(ZeroDivisionError):
        client.put(tmp_path / "local", "remote", lambda done: 1 // 0)


def test_after_close(url):
    client = millrace_nfs.Client(url)
    client.write_bytes("file", b"hello")
    file = client.open("file")
    written = client.open("written", "wb")
    written.write(b"data of an open file")
    client.close()
    client.close()
    assert file.closed and written.closed and client.closed
    for call in (file.read, file.tell, lambda: file.readinto(bytearray(1)), lambda: client.stat("file")):
        with pytest.raises(ValueError, match="closed"):
            call()
    file.close()
    with millrace_nfs.Client(url) as client:
        assert client.read_bytes("written") == b"data of an open file"


@pytest.mark.parametrize("text", ["", "http://host/x", "nfs://", "nfs://host/x?proto=udp", "nfs://[::1/x"])
def test_invalid_urls(text):
    with pytest.raises(ValueError):
        millrace_nfs.Client(text)


def test_invalid_settings(url):
    for options in ({"timeout": -1}, {"retry": float("nan")}, {"connect_timeout": float("inf")}):
        with pytest.raises(ValueError, match=next(iter(options))):
            millrace_nfs.Client(url, **options)


@pytest.mark.parametrize("proto", ["tcp", "rdma"])
def test_a_refused_connection(proto):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # It does not listen.
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionRefusedError) as caught:
            millrace_nfs.Client(f"nfs://127.0.0.1:{port}/data?proto={proto}", retry=0)
    assert caught.value.errno == errno.ECONNREFUSED


def test_an_unknown_export(server):
    with pytest.raises(FileNotFoundError, match="/data"):
        millrace_nfs.Client(server.url("/missing"))
    assert sorted(millrace_nfs.exports(server.url())) == ["/data", "/local"]


def test_threads_share_a_client(client):
    data = [pattern(200_000, n) for n in range(8)]
    failures = []

    def work(n):
        try:
            for _ in range(10):
                client.write_bytes(f"file{n}", data[n])
                assert client.read_bytes(f"file{n}") == data[n]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_pickles(client):
    client.write_bytes("file", b"0123456789")
    with pickle.loads(pickle.dumps(client)) as other:
        assert other.read_bytes("file") == b"0123456789"
    with client.open("file") as file:
        file.read(4)
        with pickle.loads(pickle.dumps(file)) as other:
            assert other.read() == b"456789"
    with client.open("file", "ab") as file, pytest.raises(TypeError):
        pickle.dumps(file)
    with pytest.raises(ValueError):
        pickle.dumps(file)


def test_a_forked_child_has_its_own_connections(client):
    data = pattern(MIB)
    client.write_bytes("file", data)
    file = client.open("file")
    assert file.read(1000) == data[:1000]
    written = client.open("written", "wb")
    written.write(b"parent")
    children = []
    for n in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                good = file.read(5000) == data[1000:6000] and client.read_bytes("file") == data
                client.write_bytes(f"child{n}", b"child")
                client.close()
                status = 0 if good and file.closed else 2
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    assert file.read(5000) == data[1000:6000], "the cursor of the parent is its own"
    written.close()
    assert client.read_bytes("written") == b"parent"
    assert sorted(client.listdir()) == ["child0", "child1", "child2", "child3", "file", "written"]


def test_a_child_that_drops_everything_leaves_the_parent_alone(client):
    client.write_bytes("file", b"hello")
    file = client.open("written", "wb")
    file.write(b"parent")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            client = file = None
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    file.close()
    assert client.read_bytes("written") == b"parent"


def test_open_files_are_closed_at_exit(url):
    with millrace_nfs.Client(url) as client:
        for ending in ("", "raise SystemExit(3)", "1 / 0", "file.cycle = [file, client]"):
            text = f"""
                import sys, millrace_nfs
                client = millrace_nfs.Client(sys.argv[1])
                file = client.open("exit", "wb")
                file.write(b"written before the exit")
                {ending}
            """
            done = script(text, url, check=False)
            assert "Fatal" not in done.stderr and done.returncode in (0, 1, 3), done.stderr
            assert client.read_bytes("exit") == b"written before the exit"
            client.unlink("exit")


def test_a_client_ends_at_the_server_with_close_and_at_exit(server, url):
    before = len(server.clients())
    client = millrace_nfs.Client(url)
    assert len(server.clients()) == before + 1
    client.close()
    client.close()
    assert len(server.clients()) == before
    script("import sys, millrace_nfs; client = millrace_nfs.Client(sys.argv[1])", url)
    assert len(server.clients()) == before


def test_exit_while_threads_and_tasks_work(url):
    text = """
        import asyncio, sys, threading, millrace_nfs, millrace_nfs.aio
        client = millrace_nfs.Client(sys.argv[1])
        client.write_bytes("file", bytes(8 << 20))
        def work():
            while True:
                client.read_bytes("file")
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        async def main():
            other = millrace_nfs.aio.Client(sys.argv[1])
            for _ in range(10):
                asyncio.ensure_future(other.read_bytes("file"))
            await asyncio.sleep(0.05)
        asyncio.run(main())
        print("end")
    """
    done = script(text, url)
    assert done.stdout == "end\n" and "Fatal" not in done.stderr and "panic" not in done.stderr, done.stderr


SILENT = """
    import os, signal, sys, threading, time, millrace_nfs
    # A shell in the background has its processes ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A server that accepts connections and never answers.
    import socket
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    url = f"nfs://127.0.0.1:{listener.getsockname()[1]}/data?proto=tcp"
    started = None
    def interrupt():
        global started
        time.sleep(0.5)
        started = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        millrace_nfs.Client(url)
    except KeyboardInterrupt:
        print(time.monotonic() - started)
"""


def test_ctrl_c_interrupts_a_call():
    # The check for signals is every 100 ms. Without it the client would try to connect for minutes.
    assert float(script(SILENT).stdout) < 10


def test_a_signal_handler_runs_while_a_call_waits(client):
    called = []
    previous = signal.signal(signal.SIGALRM, lambda *_: called.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        deadline = time.monotonic() + 30
        while not called and time.monotonic() < deadline:
            client.stat("")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert called and client.listdir() == []


def test_an_interrupted_copy_leaves_no_temporary_file(client, tmp_path):
    (tmp_path / "local").write_bytes(bytes(64 * MIB))

    def interrupt(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.put(tmp_path / "local", "remote", interrupt)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and set(client.listdir()) - {"remote"}:
        time.sleep(0.05)
    assert set(client.listdir()) <= {"remote"}


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_opens_do_not_grow_memory(client):
    client.write_bytes("file", b"x" * 1000)

    def opens(count):
        for _ in range(count):
            with client.open("file") as file:
                assert len(file.read()) == 1000
        gc.collect()

    opens(10_000)
    before = resident()
    opens(100_000)
    assert resident() - before < 4 * MIB, (before, resident())
