"""The file system for fsspec."""

from __future__ import annotations

import errno
import os
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any, Callable, Iterator, TypeVar

from fsspec.callbacks import DEFAULT_CALLBACK  # type: ignore[import-untyped]
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]
from fsspec.utils import isfilelike  # type: ignore[import-untyped]

from ._client import Client, exports
from ._exports import Exports, missing
from ._file import File
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
from ._fsspec_file import MillraceFile
from ._mode import access
from ._stat import Stat


_T = TypeVar("_T")


class _Client(Client):
    _absolute = True


class MillraceFileSystem(Paths, AbstractFileSystem):  # type: ignore[misc]
    """Files of an NFS server for fsspec.

    It is fork-safe: each process has its own connections. Nothing is cached between calls.

    :param host: name or address of the server.
    :param port: port of the server; the default is 20049 for RDMA and 2049 for TCP.
    :param auto_mkdir: create missing parent directories of files that are written.
    :param kwargs: options of URLs, arguments of ``millrace_nfs.Client``, and those of ``AbstractFileSystem``.
    """

    _transport: str | None = None
    """The transport that the protocol states with which the class is registered."""

    def __init__(self, host: str = "", port: int | None = None, auto_mkdir: bool = True, **kwargs: Any) -> None:
        own = {name: kwargs.pop(name) for name in list(kwargs) if not is_of_base(name)}
        if self._transport is not None:
            stated, own["proto"] = own.get("proto"), self._transport
            if stated not in (self._transport, "auto", None):
                raise ValueError(f"the protocol nfs+{self._transport} contradicts proto={stated}; use nfs+{stated}")
        super().__init__(**kwargs)
        self.host, self.port, self.auto_mkdir = host, port, auto_mkdir
        self._exports: Exports[Client] = Exports(
            host, port, own, lambda url, **settings: _Client(url, connect=False, **settings)
        )

    def _at(self, path: str) -> tuple[Client, str]:
        """The client for a path, and the path in its export."""
        path = self._strip_protocol(path)
        self._list_exports()
        found = self._exports.of(path)
        if found is None:
            if self._exports.names:
                raise missing(path)
            client = self._exports.client(path)
            self._exports.add(client.export, client)
            found = self._exports.of(path)
            if found is None:
                raise missing(path)
        return found

    def _list_exports(self) -> None:
        if self._exports.names is not None:
            return
        try:
            self._exports.names = exports(self._exports.url("/"))
        except (ConnectionError, TimeoutError):
            raise
        except OSError:
            self._exports.names = []  # The server does not offer MOUNT, or has no list.

    def _with_parent(self, path: str, call: Callable[[], _T]) -> _T:
        """Calls ``call``; if the parent directory is missing, creates it and calls again."""
        try:
            return call()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        client, name = self._at(self._parent(path))
        client.makedirs(name, exist_ok=True)
        return call()

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Attributes of an object. Those of a symbolic link are its target's, if it exists, with ``islink``."""
        path = self._strip_protocol(path)
        try:
            client, name = self._at(path)
        except FileNotFoundError:
            if path == "/" or self._exports.below(path):
                return directory(path)
            raise
        found = client.lstat(name)
        if not found.is_symlink():
            return info_of(path, found)
        try:
            return info_of(path, client.stat(name), is_link=True)
        except OSError:
            return info_of(path, found)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a directory, sorted by name, or a file itself."""
        path = self._strip_protocol(path)
        try:
            client, name = self._at(path)
        except FileNotFoundError:
            below = self._exports.below(path)
            if not below and path != "/":
                raise
            return [directory(one) for one in below] if detail else below
        try:
            entries = sorted(client.scandir(name))
        except NotADirectoryError:
            return [self.info(path)] if detail else [path]
        if not detail:
            return [join(path, entry.name) for entry in entries]
        return listed(path, entries, client.stat_all(links_in(name, entries)))

    def created(self, path: str) -> datetime:
        """The time of the last change of data or attributes: NFS servers need not record the creation."""
        return datetime.fromtimestamp(self.info(path)["created"], timezone.utc)

    def modified(self, path: str) -> datetime:
        """The time of the last change of the data."""
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    def ukey(self, path: str) -> str:
        """A text that changes with the content of a file."""
        return key_of(self.info(path))

    def checksum(self, path: str) -> int:
        """A number that changes with the content of a file."""
        return int(sha256(self.ukey(path).encode()).hexdigest()[:32], 16)

    def _type(self, path: str) -> str | None:
        """The type of an object, or of a link's target; None if it does not exist."""
        path = self._strip_protocol(path)
        try:
            client, name = self._at(path)
        except FileNotFoundError:
            return "directory" if path == "/" or self._exports.below(path) else None
        try:
            return client.stat(name).type
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether an object exists. Symbolic links are followed."""
        return self._type(path) is not None

    def isdir(self, path: str) -> bool:
        """Whether it is a directory. Symbolic links are followed."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Whether it is a regular file. Symbolic links are followed."""
        return self._type(path) == "file"

    def _tree(self, path: str, depth: int) -> dict[str, dict[str, Any]]:
        """The attributes of the objects below a directory."""
        try:
            client, name = self._at(path)
        except FileNotFoundError:
            below = self._exports.below(path)
            if not below and path != "/":
                raise
            found = {one: directory(one) for one in below}
            for one in below if depth > 1 else ():
                found.update(self._tree(one, depth - 1))
            return found
        return infos_of(path, client._native.tree(name, depth).wait())

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """The paths below a directory, with many calls in flight. Links to directories are not followed."""
        path, depth = self._strip_protocol(path), depth_of(maxdepth)
        try:
            found = self._tree(path, depth)
            if withdirs:
                found[path] = self.info(path)
        except FileNotFoundError:
            found = {}
        except NotADirectoryError:
            found = {path: self.info(path)} if self.exists(path) else {}
        return files_of(found, withdirs, detail)

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        detail: bool = False,
        **kwargs: Any,
    ) -> Iterator[Level]:
        """The directories of a tree, as of ``os.walk``, with many calls in flight."""
        path, depth = self._strip_protocol(path), depth_of(maxdepth)
        try:
            found = self._tree(path, depth)
        except OSError as error:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(error)
            return iter(())
        return walked(path, found, depth, topdown, detail)

    def du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        """The size of all files below a path in bytes; without ``total`` of each."""
        found = self.find(path, maxdepth, withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def chmod(self, path: str, mode: int) -> None:
        """Sets the permission bits."""
        client, name = self._at(path)
        client.chmod(name, mode)

    def getxattr(self, path: str, attribute: str) -> bytes:
        """The value of an extended attribute, as ``millrace_nfs.Client.getxattr``."""
        client, name = self._at(path)
        return client.getxattr(name, attribute)

    def setxattr(self, path: str, attribute: str, value: bytes) -> None:
        """Creates or replaces an extended attribute."""
        client, name = self._at(path)
        client.setxattr(name, attribute, value)

    def listxattr(self, path: str) -> list[str]:
        """The names of the extended attributes."""
        client, name = self._at(path)
        return client.listxattr(name)

    def removexattr(self, path: str, attribute: str) -> None:
        """Removes an extended attribute."""
        client, name = self._at(path)
        client.removexattr(name, attribute)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Creates a directory, by default with its missing parents."""
        client, name = self._at(path)
        if create_parents:
            client.makedirs(name)
        else:
            client.mkdir(name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Creates a directory and its missing parents."""
        client, name = self._at(path)
        client.makedirs(name, exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        client, name = self._at(path)
        client.rmdir(name)

    def rm_file(self, path: str) -> None:
        """Removes a file or a symbolic link."""
        client, name = self._at(path)
        client.unlink(name)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes objects; directories with their contents, if ``recursive``."""
        if maxdepth is not None:
            super().rm(path, recursive, maxdepth)
            return
        for one in self.expand_path(path, recursive=False):
            client, name = self._at(one)
            if client.lstat(name).is_dir():
                client.rmtree(name) if recursive else client.rmdir(name)
            else:
                client.unlink(name)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames an object; between exports, copies and removes it."""
        if isinstance(path1, str) and isinstance(path2, str) and maxdepth is None and not self._has_magic(path1):
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if source == target:
                return None
            if path2.endswith("/") or self.isdir(target):
                target = join(target, source.rpartition("/")[2])
            (client, name), (other, name2) = self._at(source), self._at(target)
            if client is other:
                return self._with_parent(target, lambda: client.rename(name, name2))
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
        return None

    @staticmethod
    def _has_magic(path: str) -> bool:
        return any(letter in path for letter in "*?[")

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file, or creates the directory for a copied one."""
        (client, name), (other, name2) = self._at(path1), self._at(path2)
        if self.isdir(path1):
            return other.makedirs(name2, exist_ok=True)
        if client is other:
            self._with_parent(path2, lambda: client.copy(name, name2))
            return None
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while data := source.read(8 << 20):
                target.write(data)
        return None

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Reads a file, or a range of it."""
        client, name = self._at(path)
        if start is None and end is None:
            return client.read_bytes(name)
        data: bytes = self.cat_ranges([path], [start], [end], on_error="raise")[0]
        return data

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Reads ranges of files with many calls in flight. ``max_gap`` has no effect: ranges are not combined."""
        starts, ends = per_path(paths, starts), per_path(paths, ends)
        paths = self._strip_protocol(paths)
        out: list[Any] = [None] * len(paths)
        groups: dict[int, tuple[Client, list[tuple[int, str]]]] = {}
        places: dict[str, Any] = {}
        for path in dict.fromkeys(paths):
            try:
                places[path] = self._at(path)
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
            stats = dict(zip(unique, client.stat_all(unique)))
            names_of = dict(names)
            wanted, ranges = ranges_of(paths, names, stats, starts, ends, out)
            read = client._native.read_ranges(ranges, [names_of[n] for n in wanted]).wait()
            for n, data in zip(wanted, read):
                out[n] = data
        return checked(out, on_error)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Creates or replaces a file; with the mode ``create`` it must not exist."""
        client, name = self._at(path)
        if mode == "create":
            with self._open_native(path, "xb") as file:
                file.write(value)
        else:
            self._with_parent(path, lambda: client.write_bytes(name, value))

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Creates an empty file; truncates an existing one, or sets its times."""
        if truncate:
            return self.pipe_file(path, b"")
        client, name = self._at(path)
        return self._with_parent(path, lambda: client.touch(name))

    def put_file(
        self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Copies a local file with the copy engine: it gets its name when all data is stable."""
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(errno.EEXIST, "the file exists", self._strip_protocol(rpath))
        client, name = self._at(rpath)
        if os.path.isdir(lpath):
            return client.makedirs(name, exist_ok=True)
        callback.set_size(os.stat(lpath).st_size)
        self._with_parent(rpath, lambda: client.put(lpath, name, progress_of(callback)))
        return None

    def get_file(
        self, rpath: str, lpath: Any = None, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any
    ) -> None:
        """Copies a file to the local file system with the copy engine."""
        if outfile is not None or isfilelike(lpath):
            super().get_file(rpath, lpath, callback=callback, outfile=outfile, **kwargs)
            return None
        info = self.info(rpath)
        if info["type"] == "directory":
            return os.makedirs(lpath, exist_ok=True)
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        callback.set_size(info["size"])
        client, name = self._at(rpath)
        client.get(name, lpath, progress_of(callback))
        return None

    def _open_native(self, path: str, mode: str) -> File:
        client, name = self._at(path)
        wanted, _ = access(mode)
        if mode[0] in "wax":
            return self._with_parent(path, lambda: client._open(name, wanted))
        return client._open(name, wanted)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if "+" in mode:
            return self._open_native(path, mode)
        return MillraceFile(self, path, mode, block_size, autocommit, cache_options=cache_options, **kwargs)

    def close(self) -> None:
        """Closes all connections and files; the instance is not used afterwards."""
        for client in self._exports.clients():
            client.close()


class RdmaFileSystem(MillraceFileSystem):
    """``MillraceFileSystem`` over RDMA: the protocol ``nfs+rdma``."""

    _transport = "rdma"


class TcpFileSystem(MillraceFileSystem):
    """``MillraceFileSystem`` over TCP: the protocol ``nfs+tcp``."""

    _transport = "tcp"
