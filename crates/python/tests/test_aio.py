"""The client for asyncio."""

import asyncio
import inspect
import pickle
import socket

import pytest

import millrace_nfs
import millrace_nfs.aio
from test_client import MIB, pattern


def test_the_client_and_its_files_are_those_of_millrace_nfs():
    def methods(kind, without):
        members = {**vars(kind), "new": kind.__init__}
        return {name: member for name, member in members.items() if not name.startswith("_") and name not in without}

    # What only the streams of io have, and what they inherit.
    streams = {"new", "fileno", "readall", "read1", "closed"}
    for kind, other, without in (
        (millrace_nfs.Client, millrace_nfs.aio.Client, {"open"}),
        (millrace_nfs.File, millrace_nfs.aio.File, streams),
    ):
        blocking, awaited = methods(kind, without), methods(other, without)
        assert sorted(blocking) == sorted(awaited)
        for name, member in blocking.items():
            if not isinstance(member, property):
                parameters = list(inspect.signature(member).parameters.values())
                other_parameters = list(inspect.signature(awaited[name]).parameters.values())
                assert [(one.name, one.default) for one in parameters if one.name != "connect"] == [
                    (one.name, one.default) for one in other_parameters
                ], name


async def test_names_and_attributes(client, url):
    async with millrace_nfs.aio.Client(url) as aio:
        assert await aio.server() == client.server and await aio.path_in_export() == ""
        await aio.write_bytes("file", b"123")
        await aio.symlink("file", "link")
        assert await aio.readlink("link") == "file" and (await aio.lstat("link")).is_symlink()
        await aio.link("file", "second")
        await aio.chmod("file", 0o640)
        await aio.utime("file", (None, 1_700_000_000_123_456_789))
        found = await aio.stat("second")
        assert (found.st_mode, found.st_mtime_ns, found.st_nlink) == (0o100640, 1_700_000_000_123_456_789, 2)
        assert sorted(await aio.listdir()) == ["file", "link", "second"]
        assert await aio.exists("link") and not await aio.exists("file/below") and not await aio.exists("missing")
        with pytest.raises(FileExistsError):
            await aio.makedirs("file")
        assert (await aio.stats())["calls"] > 10
        async with await aio.open("file", "rb+") as file:
            assert (file.name, file.mode, file.readable(), file.writable()) == ("file", "rb+", True, True)
        with pytest.raises(ValueError, match="add b"):
            await aio.open("file", "r")


async def test_trees_locks_and_attributes(client, url):
    async with millrace_nfs.aio.Client(url) as aio:
        await aio.makedirs("a/b")
        await aio.write_text("a/b/file", "text\n")
        assert await aio.read_text("a/b/file") == "text\n"
        assert await aio.walk() == [("", ["a"], []), ("a", ["b"], []), ("a/b", [], ["file"])]
        assert await aio.glob("**/f*") == ["a/b/file"] and await aio.glob("a/*") == ["a/b"]
        assert await aio.is_dir("a") and await aio.is_file("a/b/file") and await aio.access("a", 7)
        assert (await aio.disk_usage()).total > 0
        await aio.touch("new")
        await aio.truncate("new", 5)
        await aio.chown("new", -1, -1)
        assert await aio.read_bytes("new") == bytes(5)
        await aio.setxattr("new", "user.x", b"1")
        assert await aio.getxattr("new", "user.x") == b"1" and await aio.listxattr("new") == ["user.x"]
        await aio.removexattr("new", "user.x")
        async with await aio.open("new", "rb+") as one, await aio.open("new", "rb+") as other:
            assert await one.lock(0, 10) and not await other.lock(wait=False)
            await one.unlock()
            assert await other.lock(wait=False)


async def test_copies_report_progress(client, url, tmp_path):
    data = pattern(5 * MIB + 1)
    (tmp_path / "local").write_bytes(data)
    async with millrace_nfs.aio.Client(url) as aio:
        reported = []
        assert await aio.put(tmp_path / "local", "file", reported.append) == len(data)
        assert reported == sorted(reported) and reported[-1] == len(data)
        reported = []
        assert await aio.get("file", tmp_path / "back", reported.append) == len(data)
        assert reported[-1] == len(data) and (tmp_path / "back").read_bytes() == data

        def fails(_):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await aio.put(tmp_path / "local", "other", fails)


async def test_files_and_names(client, url):
    data = pattern(3 * MIB + 1)
    async with millrace_nfs.aio.Client(url) as aio:
        assert await aio.export() == "/data"
        await aio.makedirs("a/b")
        await aio.write_bytes("a/file", data)
        assert await aio.read_bytes("a/file") == data
        assert {entry.name for entry in await aio.scandir("a")} == {"b", "file"}
        async with await aio.open("a/stream", "wb") as file:
            assert await file.write(data) == len(data)
            await file.flush()
            await file.sync()
        async with await aio.open("a/stream") as file:
            buffer = bytearray(MIB)
            assert await file.readinto(buffer) == MIB and buffer == data[:MIB]
            assert await file.read() == data[MIB:]
            assert await file.seek(-3, 2) == len(data) - 3 and await file.read() == data[-3:]
            with pytest.raises(TypeError):
                await file.readinto(b"read-only")
        with pytest.raises(ValueError):
            await file.read()
        await aio.rename("a/stream", "a/renamed")
        await aio.unlink("a/renamed")
        with pytest.raises(FileNotFoundError):
            await aio.stat("a/renamed")
        with pytest.raises(IsADirectoryError):
            await aio.read_bytes("a")
        await aio.rmtree("a")
        assert await aio.scandir() == []


async def test_many_calls_in_flight(client, url):
    data = [pattern(300_000, n) for n in range(50)]
    async with millrace_nfs.aio.Client(url) as aio:
        await asyncio.gather(*(aio.write_bytes(f"file{n}", data[n]) for n in range(50)))
        assert await asyncio.gather(*(aio.read_bytes(f"file{n}") for n in range(50))) == data


async def test_calls_wait_for_memory(client, url):
    size = 12 * MIB
    client.write_bytes("file", pattern(size))

    async def read(aio):
        return len(await aio.read_bytes("file"))

    async with millrace_nfs.aio.Client(url) as aio:
        # Without a limit, the READs in flight would need more than the memory of the client's arena (1 GiB).
        assert await asyncio.gather(*(read(aio) for _ in range(120))) == [size] * 120
        data = bytes(9 * MIB)
        await asyncio.gather(*(aio.write_bytes(f"file{n % 8}", data) for n in range(120)))


async def test_a_cancelled_call_ends_and_others_continue(client, url):
    client.write_bytes("file", pattern(64 * MIB))
    async with millrace_nfs.aio.Client(url) as aio:
        for delay in (0, 0.001, 0.01):
            task = asyncio.ensure_future(aio.read_bytes("file"))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(await aio.read_bytes("file")) == 64 * MIB


async def test_a_call_that_gets_no_answer_can_time_out():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        aio = millrace_nfs.aio.Client(f"nfs://127.0.0.1:{listener.getsockname()[1]}/data?proto=tcp")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.stat(""), 0.2)
        aio.close()
        with pytest.raises(ValueError, match="closed"):
            await aio.stat("")


async def test_pickles(client, url):
    client.write_bytes("file", b"hello")
    aio = pickle.loads(pickle.dumps(millrace_nfs.aio.Client(url)))
    assert await aio.read_bytes("file") == b"hello"
    aio.close()


def test_a_loop_that_was_closed(client, url):
    client.write_bytes("file", pattern(8 * MIB))

    async def abandon():
        asyncio.ensure_future(aio.read_bytes("file"))
        await asyncio.sleep(0)

    for _ in range(3):
        aio = millrace_nfs.aio.Client(url)
        asyncio.run(abandon())
        aio.close()
