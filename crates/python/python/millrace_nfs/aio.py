"""The client for asyncio: the methods of ``millrace_nfs.Client`` and ``millrace_nfs.File`` as coroutines.

>>> async with millrace_nfs.aio.Client("nfs://server/data") as client:
...     async with await client.open("greeting") as file:
...         print(await file.read())

Any number of calls can be in flight. Cancelling a task cancels its call: the server may have executed it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Callable, Iterable, TypeVar

from . import _native
from ._client import Path, _counters, _stat_or_error
from ._file import _CHUNK, OpenFile
from ._mode import Access, access
from ._settings import Settings
from ._stat import DirEntry, Stat
from ._tree import ALL_LEVELS, DiskUsage, decoded, disk_usage, encoded, walk, xattr_name
from ._tree import pattern as _pattern

__all__ = ["Client", "File", "exports"]


_T = TypeVar("_T")


def _start(operation: _native.Operation[_T]) -> asyncio.Future[_T]:
    return operation.start(asyncio.get_running_loop())


async def _counted(operation: _native.Operation[_T], progress: Callable[[int], object] | None) -> _T:
    """Runs an operation, and reports the number of transferred bytes every 100 ms, and at the end."""
    running = _start(operation)
    if progress is None:
        return await running
    try:
        while not (await asyncio.wait([running], timeout=0.1))[0]:
            progress(operation.transferred)
        result = running.result()
        progress(operation.transferred)
        return result
    finally:
        running.cancel()


async def exports(url: str) -> list[str]:
    """As ``millrace_nfs.exports``."""
    return await _start(_native.exports(url))


class File(OpenFile):
    """An open file, as ``millrace_nfs.File``. Close it: nothing else makes written data stable."""

    def __init__(self, path: str, wanted: Access, native: _native.File) -> None:
        self._path = path
        self._access = wanted
        self._native = native

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._native.closed

    def tell(self) -> int:
        """The offset of the cursor."""
        return self._native.position()

    async def read(self, size: int | None = -1) -> bytes:
        """As ``millrace_nfs.File.read``."""
        self._check_readable()
        if size is None or size < 0 or size > _CHUNK:
            rest = max((await self.stat()).st_size - self.tell(), 0)
            size = rest if size is None or size < 0 else min(size, rest)
        return await _start(self._native.read(size))

    async def readinto(self, buffer: Any) -> int:
        """As ``millrace_nfs.File.readinto``. Do not access the buffer before the call has ended."""
        self._check_readable()
        return await _start(self._native.readinto(buffer))

    async def write(self, data: Any) -> int:
        """As ``millrace_nfs.File.write``."""
        self._check_writable()
        return await _start(self._native.write(data))

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As ``millrace_nfs.File.seek``."""
        return await _start(self._native.seek(offset, whence))

    async def truncate(self, size: int | None = None) -> int:
        """As ``millrace_nfs.File.truncate``."""
        self._check_writable()
        return await _start(self._native.truncate(self.tell() if size is None else size))

    async def flush(self) -> None:
        """As ``millrace_nfs.File.flush``."""
        await _start(self._native.flush(False))

    async def sync(self) -> None:
        """As ``millrace_nfs.File.sync``."""
        await _start(self._native.flush(True))

    async def lock(
        self, start: int = 0, length: int | None = None, *, exclusive: bool = True, wait: bool = True
    ) -> bool:
        """As ``millrace_nfs.File.lock``."""
        self._check_open()
        return await _start(self._native.lock(start, length, exclusive, wait))

    async def unlock(self, start: int = 0, length: int | None = None) -> None:
        """As ``millrace_nfs.File.unlock``."""
        self._check_open()
        await _start(self._native.unlock(start, length))

    async def stat(self) -> Stat:
        """As ``millrace_nfs.File.stat``."""
        return Stat._make(await _start(self._native.stat()))

    async def close(self) -> None:
        """As ``millrace_nfs.File.close``."""
        if not self.closed:
            await _start(self._native.close())


class Client:
    """A mounted export, as ``millrace_nfs.Client``, with the same arguments except ``connect``.

    It connects at the first call, or in ``async with``.
    """

    _absolute = False

    def __init__(
        self,
        url: str,
        *,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        retry: float | None = None,
        uid: int | None = None,
        gid: int | None = None,
        gids: Iterable[int] | None = None,
    ) -> None:
        self.url = url
        groups = None if gids is None else list(gids)
        self._settings = Settings(timeout, connect_timeout, retry, uid, gid, groups)
        self._native = _native.Client(url, self._settings, self._absolute)

    def __repr__(self) -> str:
        return f"<millrace_nfs.aio.Client {self.url}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> Any:
        return _lazy, (self.url, self._settings)

    async def __aenter__(self) -> Client:
        await _start(self._native.connect())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; calls in flight fail. Close files before."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._native.closed

    async def export(self) -> str:
        """The name of the export."""
        return (await _start(self._native.connect()))[0]

    async def path_in_export(self) -> str:
        """As ``millrace_nfs.Client.path_in_export``."""
        return (await _start(self._native.connect()))[1]

    async def server(self) -> str:
        """Host and port of the server."""
        return (await _start(self._native.connect()))[2]

    async def stats(self) -> dict[str, int]:
        """As ``millrace_nfs.Client.stats``."""
        return _counters(await _start(self._native.stats()))

    async def open(self, path: Path, mode: str = "rb") -> File:
        """Opens a file; ``mode`` is that of the built-in ``open`` for binary files, with ``b``."""
        wanted, text = access(mode)
        if text:
            raise ValueError(f"invalid mode: {mode!r}; files of millrace_nfs.aio are binary: add b to the mode")
        name = os.fspath(path)
        return File(name, wanted, await _start(self._native.open(name, wanted)))

    async def read_bytes(self, path: Path) -> bytes:
        """As ``millrace_nfs.Client.read_bytes``."""
        found = await self.stat(path)
        if not found.is_file():
            async with await self.open(path) as file:  # Raises the error of the type.
                return await file.read()
        data = (await _start(self._native.read_ranges([(found.handle, 0, found.st_size)], [path])))[0]
        if isinstance(data, BaseException):
            raise data
        return data

    async def read_ranges(self, ranges: Iterable[tuple[bytes, int, int]]) -> list[bytes | OSError]:
        """As ``millrace_nfs.Client.read_ranges``."""
        return await _start(self._native.read_ranges(list(ranges), []))

    async def write_bytes(self, path: Path, data: Any) -> None:
        """As ``millrace_nfs.Client.write_bytes``."""
        await _start(self._native.write(path, data))

    async def read_text(self, path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        """As ``millrace_nfs.Client.read_text``."""
        return decoded(await self.read_bytes(path), encoding, errors)

    async def write_text(
        self,
        path: Path,
        text: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> None:
        """As ``millrace_nfs.Client.write_text``."""
        await self.write_bytes(path, encoded(text, encoding, errors, newline))

    async def touch(self, path: Path, exist_ok: bool = True) -> None:
        """As ``millrace_nfs.Client.touch``."""
        await _start(self._native.touch(path, exist_ok))

    async def truncate(self, path: Path, length: int) -> None:
        """As ``millrace_nfs.Client.truncate``."""
        await _start(self._native.truncate(path, length))

    async def stat(self, path: Path, *, follow_symlinks: bool = True) -> Stat:
        """As ``millrace_nfs.Client.stat``."""
        return Stat._make(await _start(self._native.stat(path, follow_symlinks)))

    async def stat_all(self, paths: Iterable[Path]) -> list[Stat | OSError]:
        """As ``millrace_nfs.Client.stat_all``."""
        return [_stat_or_error(found) for found in await _start(self._native.stat_all(list(paths)))]

    async def lstat(self, path: Path) -> Stat:
        """As ``millrace_nfs.Client.lstat``."""
        return await self.stat(path, follow_symlinks=False)

    async def exists(self, path: Path) -> bool:
        """As ``millrace_nfs.Client.exists``."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def is_file(self, path: Path) -> bool:
        """As ``millrace_nfs.Client.is_file``."""
        try:
            return (await self.stat(path)).is_file()
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def is_dir(self, path: Path) -> bool:
        """As ``millrace_nfs.Client.is_dir``."""
        try:
            return (await self.stat(path)).is_dir()
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def access(self, path: Path, mode: int) -> bool:
        """As ``millrace_nfs.Client.access``."""
        try:
            return await _start(self._native.access(path, mode))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False

    async def scandir(self, path: Path = "") -> list[DirEntry]:
        """As ``millrace_nfs.Client.scandir``."""
        return [DirEntry(name, Stat._make(stat)) for name, stat in await _start(self._native.scan(path))]

    async def listdir(self, path: Path = "") -> list[str]:
        """As ``millrace_nfs.Client.listdir``."""
        return [entry.name for entry in await self.scandir(path)]

    async def walk(self, path: Path = "") -> list[tuple[str, list[str], list[str]]]:
        """As ``millrace_nfs.Client.walk``."""
        return list(walk(os.fspath(path), await _start(self._native.tree(path, ALL_LEVELS))))

    async def glob(self, pattern: str) -> list[str]:
        """As ``millrace_nfs.Client.glob``."""
        wanted = _pattern(pattern)
        if wanted is None:
            return [pattern] if await self.exists(pattern) else []
        try:
            return wanted.matches(await _start(self._native.tree(wanted.top, wanted.depth)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    async def mkdir(self, path: Path) -> None:
        """As ``millrace_nfs.Client.mkdir``."""
        await _start(self._native.mkdir(path))

    async def makedirs(self, path: Path, exist_ok: bool = False) -> None:
        """As ``millrace_nfs.Client.makedirs``."""
        await _start(self._native.makedirs(path, exist_ok))

    async def unlink(self, path: Path) -> None:
        """As ``millrace_nfs.Client.unlink``."""
        await _start(self._native.unlink(path))

    async def rmdir(self, path: Path) -> None:
        """As ``millrace_nfs.Client.rmdir``."""
        await _start(self._native.rmdir(path))

    async def rmtree(self, path: Path) -> None:
        """As ``millrace_nfs.Client.rmtree``."""
        await _start(self._native.rmtree(path))

    async def rename(self, source: Path, target: Path) -> None:
        """As ``millrace_nfs.Client.rename``."""
        await _start(self._native.rename(source, target))

    async def link(self, source: Path, target: Path) -> None:
        """As ``millrace_nfs.Client.link``."""
        await _start(self._native.link(source, target))

    async def symlink(self, target: Path, link: Path) -> None:
        """As ``millrace_nfs.Client.symlink``."""
        await _start(self._native.symlink(target, link))

    async def readlink(self, path: Path) -> str:
        """As ``millrace_nfs.Client.readlink``."""
        return await _start(self._native.readlink(path))

    async def chmod(self, path: Path, mode: int) -> None:
        """As ``millrace_nfs.Client.chmod``."""
        await _start(self._native.chmod(path, mode))

    async def chown(self, path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """As ``millrace_nfs.Client.chown``."""
        owner, group = (None if one == -1 else one for one in (uid, gid))
        await _start(self._native.chown(path, owner, group, follow_symlinks))

    async def disk_usage(self, path: Path = "") -> DiskUsage:
        """As ``millrace_nfs.Client.disk_usage``."""
        return disk_usage(*(await _start(self._native.space(path))))

    async def getxattr(self, path: Path, attribute: str) -> bytes:
        """As ``millrace_nfs.Client.getxattr``."""
        return await _start(self._native.xattr(path, xattr_name(attribute)))

    async def setxattr(self, path: Path, attribute: str, value: bytes) -> None:
        """As ``millrace_nfs.Client.setxattr``."""
        await _start(self._native.set_xattr(path, xattr_name(attribute), value))

    async def listxattr(self, path: Path) -> list[str]:
        """As ``millrace_nfs.Client.listxattr``."""
        return [f"user.{name}" for name in await _start(self._native.list_xattrs(path))]

    async def removexattr(self, path: Path, attribute: str) -> None:
        """As ``millrace_nfs.Client.removexattr``."""
        await _start(self._native.remove_xattr(path, xattr_name(attribute)))

    async def utime(self, path: Path, ns: tuple[int | None, int | None]) -> None:
        """As ``millrace_nfs.Client.utime``."""
        await _start(self._native.utime(path, *ns))

    async def copy(self, source: Path, target: Path) -> int:
        """As ``millrace_nfs.Client.copy``."""
        return await _start(self._native.copy(source, target))

    async def put(self, local: Path, path: Path, progress: Callable[[int], object] | None = None) -> int:
        """As ``millrace_nfs.Client.put``."""
        return await _counted(self._native.put(local, path), progress)

    async def get(self, path: Path, local: Path, progress: Callable[[int], object] | None = None) -> int:
        """As ``millrace_nfs.Client.get``."""
        return await _counted(self._native.get(path, local), progress)


def _lazy(url: str, settings: Settings) -> Client:
    return Client(url, **settings._asdict())
