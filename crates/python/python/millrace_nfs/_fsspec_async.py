"""The file system for fsspec with asyncio."""

from __future__ import annotations

import errno
import os
from datetime import datetime, timezone
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, TypeVar

from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped]
from fsspec.callbacks import DEFAULT_CALLBACK  # type: ignore[import-untyped]

from . import aio
from ._exports import Exports, missing
from ._fsspec_common import (
    Level,
    Paths,
    checked,
    depth_of,
    directory,
    files_of,
    info_of,
    infos_of,
    is_of_base,
    join,
    key_of,
    links_in,
    listed,
    per_path,
    progress_of,
    ranges_of,
    walked,
)
from ._fsspec_sync import MillraceFileSystem


_T = TypeVar("_T")


class _Client(aio.Client):
    _absolute = True


class AsyncMillraceFileSystem(Paths, AsyncFileSystem):  # type: ignore[misc]
    """The file system for asyncio: methods with a leading underscore are coroutines, and any number of them can be in
    flight. The others run them in fsspec's thread; for programs without asyncio ``MillraceFileSystem`` is faster. Those
    without a coroutine in fsspec (``open``, ``mv``, ``touch`` and others), and ``walk``, are those of a
    ``MillraceFileSystem``, which has connections of its own.

    Arguments are those of ``MillraceFileSystem``.
    """

    def __init__(self, host: str = "", port: int | None = None, auto_mkdir: bool = True, **kwargs: Any) -> None:
        own = {name: kwargs.pop(name) for name in list(kwargs) if not is_of_base(name)}
        super().__init__(**kwargs)
        self.host, self.port, self.auto_mkdir = host, port, auto_mkdir
        self._exports: Exports[aio.Client] = Exports(host, port, own, _Client)
        self._sync = MillraceFileSystem(host, port, auto_mkdir, skip_instance_cache=True, **own)

    async def _at(self, path: str) -> tuple[aio.Client, str]:
        path = self._strip_protocol(path)
        if self._exports.names is None:
            try:
                self._exports.names = await aio.exports(self._exports.url("/"))
            except (ConnectionError, TimeoutError):
                raise
            except OSError:
                self._exports.names = []
        found = self._exports.of(path)
        if found is None:
            if self._exports.names:
                raise missing(path)
            client = self._exports.client(path)
            self._exports.add(await client.export(), client)
            found = self._exports.of(path)
            if found is None:
                raise missing(path)
        return found

    async def _with_parent(self, path: str, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await call()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        await self._makedirs(self._parent(path), exist_ok=True)
        return await call()

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        try:
            client, name = await self._at(path)
        except FileNotFoundError:
            if path == "/" or self._exports.below(path):
                return directory(path)
            raise
        found = await client.stat(name, follow_symlinks=False)
        if not found.is_symlink():
            return info_of(path, found)
        try:
            return info_of(path, await client.stat(name), is_link=True)
        except OSError:
            return info_of(path, found)

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            client, name = await self._at(path)
        except FileNotFoundError:
            below = self._exports.below(path)
            if not below and path != "/":
                raise
            return [directory(one) for one in below] if detail else below
        try:
            entries = sorted(await client.scandir(name))
        except NotADirectoryError:
            return [await self._info(path)] if detail else [path]
        if not detail:
            return [join(path, entry.name) for entry in entries]
        targets = await client.stat_all(links_in(name, entries))
        return listed(path, entries, targets)

    async def _type(self, path: str) -> str | None:
        path = self._strip_protocol(path)
        try:
            client, name = await self._at(path)
        except FileNotFoundError:
            return "directory" if path == "/" or self._exports.below(path) else None
        try:
            return (await client.stat(name)).type
        except (FileNotFoundError, NotADirectoryError):
            return None

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        return await self._type(path) is not None

    async def _isdir(self, path: str) -> bool:
        return await self._type(path) == "directory"

    async def _isfile(self, path: str) -> bool:
        return await self._type(path) == "file"

    async def _tree(self, path: str, depth: int) -> dict[str, dict[str, Any]]:
        try:
            client, name = await self._at(path)
        except FileNotFoundError:
            below = self._exports.below(path)
            if not below and path != "/":
                raise
            found = {one: directory(one) for one in below}
            for one in below if depth > 1 else ():
                found.update(await self._tree(one, depth - 1))
            return found
        return infos_of(path, await aio._start(client._native.tree(name, depth)))

    async def _find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        path, depth = self._strip_protocol(path), depth_of(maxdepth)
        try:
            found = await self._tree(path, depth)
            if withdirs:
                found[path] = await self._info(path)
        except FileNotFoundError:
            found = {}
        except NotADirectoryError:
            found = {path: await self._info(path)} if await self._exists(path) else {}
        return files_of(found, withdirs, detail)

    async def _walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        detail: bool = False,
        **kwargs: Any,
    ) -> AsyncIterator[Level]:
        path, depth = self._strip_protocol(path), depth_of(maxdepth)
        try:
            found = await self._tree(path, depth)
        except OSError as error:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(error)
            return
        for level in walked(path, found, depth, topdown, detail):
            yield level

    async def _du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        found = await self._find(path, maxdepth, withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    async def _chmod(self, path: str, mode: int) -> None:
        client, name = await self._at(path)
        await client.chmod(name, mode)

    async def _getxattr(self, path: str, attribute: str) -> bytes:
        client, name = await self._at(path)
        return await client.getxattr(name, attribute)

    async def _setxattr(self, path: str, attribute: str, value: bytes) -> None:
        client, name = await self._at(path)
        await client.setxattr(name, attribute, value)

    async def _listxattr(self, path: str) -> list[str]:
        client, name = await self._at(path)
        return await client.listxattr(name)

    async def _removexattr(self, path: str, attribute: str) -> None:
        client, name = await self._at(path)
        await client.removexattr(name, attribute)

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        client, name = await self._at(path)
        await (client.makedirs(name) if create_parents else client.mkdir(name))

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        client, name = await self._at(path)
        await client.makedirs(name, exist_ok)

    async def _rmdir(self, path: str) -> None:
        client, name = await self._at(path)
        await client.rmdir(name)

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        client, name = await self._at(path)
        await client.unlink(name)

    async def _rm(self, path: Any, recursive: bool = False, batch_size: int | None = None, **kwargs: Any) -> None:
        for one in await self._expand_path(path, recursive=False):
            client, name = await self._at(one)
            if not (await client.stat(name, follow_symlinks=False)).is_dir():
                await client.unlink(name)
            elif recursive:
                await client.rmtree(name)
            else:
                await client.rmdir(name)

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        if (await self._info(path1))["type"] == "directory":
            return await self._makedirs(path2, exist_ok=True)
        (client, name), (other, name2) = await self._at(path1), await self._at(path2)
        if client is other:
            await self._with_parent(path2, lambda: client.copy(name, name2))
        else:
            await self._pipe_file(path2, await self._cat_file(path1))
        return None

    async def _mv_file(self, path1: str, path2: str) -> None:
        (client, name), (other, name2) = await self._at(path1), await self._at(path2)
        if client is other:
            return await self._with_parent(path2, lambda: client.rename(name, name2))
        await self._cp_file(path1, path2)
        return await self._rm_file(path1)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        client, name = await self._at(path)
        if start is None and end is None:
            return await client.read_bytes(name)
        data: bytes = (await self._cat_ranges([path], [start], [end], on_error="raise"))[0]
        return data

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        starts, ends = per_path(paths, starts), per_path(paths, ends)
        paths = self._strip_protocol(paths)
        out: list[Any] = [None] * len(paths)
        groups: dict[int, tuple[aio.Client, list[tuple[int, str]]]] = {}
        places: dict[str, Any] = {}
        for path in dict.fromkeys(paths):
            try:
                places[path] = await self._at(path)
            except OSError as error:
                places[path] = error
        for n, path in enumerate(paths):
            if isinstance(places[path], OSError):
                out[n] = places[path]
                continue
            client, name = places[path]
            groups.setdefault(id(client), (client, []))[1].append((n, name))
        for client, names in groups.values():
            unique = list(dict.fromkeys(name for _, name in names))
            stats = dict(zip(unique, await client.stat_all(unique)))
            names_of = dict(names)
            wanted, ranges = ranges_of(paths, names, stats, starts, ends, out)
            read = await aio._start(client._native.read_ranges(ranges, [names_of[n] for n in wanted]))
            for n, data in zip(wanted, read):
                out[n] = data
        return checked(out, on_error)

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        client, name = await self._at(path)
        if mode == "create":
            async with await self._with_parent(path, lambda: client.open(name, "xb")) as file:
                await file.write(value)
        else:
            await self._with_parent(path, lambda: client.write_bytes(name, value))

    async def _touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        if truncate:
            return await self._pipe_file(path, b"")
        client, name = await self._at(path)
        return await self._with_parent(path, lambda: client.touch(name))

    async def _put_file(
        self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        if mode == "create" and await self._exists(rpath):
            raise FileExistsError(errno.EEXIST, "the file exists", self._strip_protocol(rpath))
        if os.path.isdir(lpath):
            return await self._makedirs(rpath, exist_ok=True)
        client, name = await self._at(rpath)
        callback.set_size(os.stat(lpath).st_size)
        await self._with_parent(rpath, lambda: client.put(lpath, name, progress_of(callback)))
        return None

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        info = await self._info(rpath)
        if info["type"] == "directory":
            return os.makedirs(lpath, exist_ok=True)
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        client, name = await self._at(rpath)
        callback.set_size(info["size"])
        await client.get(name, lpath, progress_of(callback))
        return None

    async def _created(self, path: str) -> datetime:
        return datetime.fromtimestamp((await self._info(path))["created"], timezone.utc)

    async def _modified(self, path: str) -> datetime:
        return datetime.fromtimestamp((await self._info(path))["mtime"], timezone.utc)

    async def _ukey(self, path: str) -> str:
        return key_of(await self._info(path))

    def ukey(self, path: str) -> str:
        """As ``MillraceFileSystem.ukey``."""
        return self._sync.ukey(path)

    def checksum(self, path: str) -> int:
        """As ``MillraceFileSystem.checksum``."""
        return self._sync.checksum(path)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """As ``MillraceFileSystem.touch``."""
        self._sync.touch(path, truncate, **kwargs)

    def chmod(self, path: str, mode: int) -> None:
        """As ``MillraceFileSystem.chmod``."""
        self._sync.chmod(path, mode)

    def getxattr(self, path: str, attribute: str) -> bytes:
        """As ``MillraceFileSystem.getxattr``."""
        return self._sync.getxattr(path, attribute)

    def setxattr(self, path: str, attribute: str, value: bytes) -> None:
        """As ``MillraceFileSystem.setxattr``."""
        self._sync.setxattr(path, attribute, value)

    def listxattr(self, path: str) -> list[str]:
        """As ``MillraceFileSystem.listxattr``."""
        return self._sync.listxattr(path)

    def removexattr(self, path: str, attribute: str) -> None:
        """As ``MillraceFileSystem.removexattr``."""
        self._sync.removexattr(path, attribute)

    def walk(self, path: str, *arguments: Any, **kwargs: Any) -> Iterator[Level]:
        """As ``MillraceFileSystem.walk``."""
        return self._sync.walk(path, *arguments, **kwargs)

    def created(self, path: str) -> datetime:
        """As ``MillraceFileSystem.created``."""
        return self._sync.created(path)

    def modified(self, path: str) -> datetime:
        """As ``MillraceFileSystem.modified``."""
        return self._sync.modified(path)

    def rmdir(self, path: str) -> None:
        """As ``MillraceFileSystem.rmdir``."""
        self._sync.rmdir(path)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """As ``MillraceFileSystem.mv``."""
        self._sync.mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> aio.File:
        """Opens a file, which has coroutines."""
        client, name = await self._at(path)
        if mode[0] in "wax":
            return await self._with_parent(path, lambda: client.open(name, mode))
        return await client.open(name, mode)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return self._sync._open(path, mode, **kwargs)
