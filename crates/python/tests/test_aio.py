"""The client for asyncio."""

import asyncio
import pickle
import socket

import pytest

import millrace_nfs
import millrace_nfs.aio
from test_client import MIB, pattern


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
