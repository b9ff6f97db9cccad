"""The blocking client."""

from __future__ import annotations

import io
import os
import weakref
from typing import Any, Callable, Iterable, Iterator, Union, overload

from . import _native
from ._file import File, _open_clients
from ._mode import Access, BinaryMode, TextMode, access
from ._settings import Settings
from ._stat import DirEntry, Stat
from ._tree import ALL_LEVELS, DiskUsage, Walk, decoded, disk_usage, encoded, walk, xattr_name
from ._tree import pattern as _pattern

Path = Union[str, "os.PathLike[str]"]
"""A path in the export, with or without a leading slash."""


def exports(url: str) -> list[str]:
    """Names of the exports of the URL's server; the URL's path is ignored."""
    return _native.exports(url).wait()


class Client:
    """A mounted export: ``nfs://HOST[:PORT]/EXPORT[/PATH][?OPTION=VALUE&...]``.

    ``nfs+tcp://`` and ``nfs+rdma://`` state the transport. Options of the URL are ``proto=auto|rdma|tcp`` (default auto),
    ``vers=3|4.1|4.2``, ``nconnect=N``, ``rsize=SIZE``, ``wsize=SIZE``, ``provider=auto|iwarp|verbs``, ``noresvport`` and
    others of the command ``millrace``.

    Methods take paths from the root of the export (``export``), and raise the subclasses of ``OSError`` that the same
    functions of ``os`` raise, with ``errno``; ``ValueError`` for an invalid URL and after ``close``. They release the GIL,
    and any number of threads can call them. Ctrl-C interrupts them.

    Each process has its own connections: after ``os.fork`` the child connects at its first call. Clients pickle by URL.
    The client is a context manager; ``close`` also closes its files.

    :param url: the URL of the export, or of an object below it.
    :param connect: connect at once; otherwise at the first call.
    :param timeout: time limit of one transmission of a call in seconds (default 30).
    :param connect_timeout: time limit of a connection attempt in seconds (default 10).
    :param retry: time in seconds for which a call is retried while the server does not answer (default 60).
    :param uid: user ID of the calls (AUTH_SYS); the default is that of the process.
    :param gid: group ID of the calls; the default is that of the process.
    :param gids: supplementary groups of the calls, at most 16; the default is those of the process.
    """

    _absolute = False
    """Whether the paths in errors begin with the export, as those of fsspec do."""

    def __init__(
        self,
        url: str,
        *,
        connect: bool = True,
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
        self._files: weakref.WeakSet[File] = weakref.WeakSet()
        _open_clients.add(self)
        if connect:
            self._native.connect().wait()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _lazy, (self.url, self._settings)

    def __repr__(self) -> str:
        return f"<millrace_nfs.Client {self.url}{' closed' if self.closed else ''}>"

    def close(self) -> None:
        """Closes the files of this client, then its session and connections. Raises the first error of a file."""
        errors: list[BaseException] = []
        for file in list(self._files):
            try:
                file.close()
            except OSError as error:
                errors.append(error)
        self._native.close()
        if errors:
            raise errors[0]

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._native.closed

    @property
    def export(self) -> str:
        """The name of the export."""
        return self._native.connect().wait()[0]

    @property
    def path_in_export(self) -> str:
        """The rest of the URL's path below the export, without a leading slash."""
        return self._native.connect().wait()[1]

    @property
    def server(self) -> str:
        """Host and port of the server."""
        return self._native.connect().wait()[2]

    def stats(self) -> dict[str, int]:
        """Counters of this process: ``calls``, ``bytes_read``, ``bytes_written``."""
        return _counters(self._native.stats().wait())

    @overload
    def open(self, path: Path, mode: BinaryMode = "rb") -> File: ...

    @overload
    def open(
        self,
        path: Path,
        mode: TextMode,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> io.TextIOWrapper: ...

    @overload
    def open(
        self,
        path: Path,
        mode: str,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> File | io.TextIOWrapper: ...

    def open(
        self,
        path: Path,
        mode: str = "rb",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> File | io.TextIOWrapper:
        """Opens a file. ``mode`` is that of the built-in ``open``, but the default is ``rb``: text without ``b``."""
        wanted, text = access(mode)
        if not text and (encoding, errors, newline) != (None, None, None):
            raise ValueError("encoding, errors and newline are for text: remove b from the mode")
        file = self._open(path, wanted)
        if not text:
            return file
        buffered: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
        if file.readable() and file.writable():
            buffered = io.BufferedRandom(file)
        elif file.writable():
            buffered = io.BufferedWriter(file)
        else:
            buffered = io.BufferedReader(file, 1 << 17)
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    def _open(self, path: Path, wanted: Access) -> File:
        name = os.fspath(path)
        file = File(self, name, wanted, self._native.open(name, wanted).wait())
        self._files.add(file)
        return file

    def read_bytes(self, path: Path) -> bytes:
        """Reads a whole file."""
        found = self.stat(path)
        if not found.is_file():
            with self.open(path) as file:  # Raises the error of the type.
                return file.read()
        data = self._native.read_ranges([(found.handle, 0, found.st_size)], [path]).wait()[0]
        if isinstance(data, BaseException):
            raise data
        return data

    def read_ranges(self, ranges: Iterable[tuple[bytes, int, int]]) -> list[bytes | OSError]:
        """Reads ranges (``Stat.handle``, offset, length) with many calls in flight.

        Returns for each the data, shorter at the end of the file, or the error. The memory for all is allocated first.
        """
        return self._native.read_ranges(list(ranges), []).wait()

    def write_bytes(self, path: Path, data: Any) -> None:
        """Creates or replaces a file with ``data``, which is on stable storage on return."""
        self._native.write(path, data).wait()

    def read_text(self, path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        """Reads a whole file as text."""
        return decoded(self.read_bytes(path), encoding, errors)

    def write_text(
        self,
        path: Path,
        text: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> None:
        """As ``write_bytes``, with text."""
        self.write_bytes(path, encoded(text, encoding, errors, newline))

    def touch(self, path: Path, exist_ok: bool = True) -> None:
        """Creates an empty file, or sets the times of an existing object to the server's present time."""
        self._native.touch(path, exist_ok).wait()

    def truncate(self, path: Path, length: int) -> None:
        """Sets the size of a file to ``length`` bytes."""
        self._native.truncate(path, length).wait()

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> Stat:
        """The attributes of an object."""
        return Stat._make(self._native.stat(path, follow_symlinks).wait())

    def stat_all(self, paths: Iterable[Path]) -> list[Stat | OSError]:
        """The attributes of many objects, or the error, with many calls in flight."""
        return [_stat_or_error(found) for found in self._native.stat_all(list(paths)).wait()]

    def lstat(self, path: Path) -> Stat:
        """As ``stat``, of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: Path) -> bool:
        """Whether an object exists. Symbolic links are followed."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_file(self, path: Path) -> bool:
        """Whether it is a regular file. Symbolic links are followed."""
        try:
            return self.stat(path).is_file()
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_dir(self, path: Path) -> bool:
        """Whether it is a directory. Symbolic links are followed."""
        try:
            return self.stat(path).is_dir()
        except (FileNotFoundError, NotADirectoryError):
            return False

    def access(self, path: Path, mode: int) -> bool:
        """Whether the caller has the rights ``mode`` (``os.R_OK``, ``os.W_OK``, ``os.X_OK``), by the server's answer."""
        try:
            return self._native.access(path, mode).wait()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False

    def scandir(self, path: Path = "") -> Iterator[DirEntry]:
        """The entries of a directory with their attributes, in the order of the server."""
        return (DirEntry(name, Stat._make(stat)) for name, stat in self._native.scan(path).wait())

    def listdir(self, path: Path = "") -> list[str]:
        """The names of the entries of a directory, in the order of the server."""
        return [entry.name for entry in self.scandir(path)]

    def walk(self, path: Path = "") -> Walk:
        """The directories of a tree from the top down, as of ``os.walk``, with many calls in flight.

        Links to directories are not followed. A directory that cannot be read is left out.
        """
        return walk(os.fspath(path), self._native.tree(path, ALL_LEVELS).wait())

    def glob(self, pattern: str) -> list[str]:
        """The paths that match a pattern, sorted; ``**`` stands for any number of directories, as in ``glob``."""
        wanted = _pattern(pattern)
        if wanted is None:
            return [pattern] if self.exists(pattern) else []
        try:
            return wanted.matches(self._native.tree(wanted.top, wanted.depth).wait())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def mkdir(self, path: Path) -> None:
        """Creates a directory."""
        self._native.mkdir(path).wait()

    def makedirs(self, path: Path, exist_ok: bool = False) -> None:
        """Creates a directory and its missing parents."""
        self._native.makedirs(path, exist_ok).wait()

    def unlink(self, path: Path) -> None:
        """Removes a file or a symbolic link."""
        self._native.unlink(path).wait()

    def rmdir(self, path: Path) -> None:
        """Removes an empty directory."""
        self._native.rmdir(path).wait()

    def rmtree(self, path: Path) -> None:
        """Removes a directory with its contents. Symbolic links are not followed."""
        self._native.rmtree(path).wait()

    def rename(self, source: Path, target: Path) -> None:
        """Renames an object; replaces ``target`` if it exists."""
        self._native.rename(source, target).wait()

    def link(self, source: Path, target: Path) -> None:
        """Creates ``target`` as a hard link to ``source``."""
        self._native.link(source, target).wait()

    def symlink(self, target: Path, link: Path) -> None:
        """Creates the symbolic link ``link`` with the text ``target``."""
        self._native.symlink(target, link).wait()

    def readlink(self, path: Path) -> str:
        """The text of a symbolic link."""
        return self._native.readlink(path).wait()

    def chmod(self, path: Path, mode: int) -> None:
        """Sets the permission bits."""
        self._native.chmod(path, mode).wait()

    def chown(self, path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Sets owner and group; -1 leaves one unchanged."""
        owner, group = (None if one == -1 else one for one in (uid, gid))
        self._native.chown(path, owner, group, follow_symlinks).wait()

    def disk_usage(self, path: Path = "") -> DiskUsage:
        """Size, used and free space of the object's file system in bytes; ``free`` is what the caller can use."""
        return disk_usage(*self._native.space(path).wait())

    def getxattr(self, path: Path, attribute: str) -> bytes:
        """The value of an extended attribute ``user.NAME``, as ``os.getxattr``. They need NFSv4.2."""
        return self._native.xattr(path, xattr_name(attribute)).wait()

    def setxattr(self, path: Path, attribute: str, value: bytes) -> None:
        """Creates or replaces an extended attribute."""
        self._native.set_xattr(path, xattr_name(attribute), value).wait()

    def listxattr(self, path: Path) -> list[str]:
        """The names of the extended attributes."""
        return [f"user.{name}" for name in self._native.list_xattrs(path).wait()]

    def removexattr(self, path: Path, attribute: str) -> None:
        """Removes an extended attribute."""
        self._native.remove_xattr(path, xattr_name(attribute)).wait()

    def utime(self, path: Path, ns: tuple[int | None, int | None]) -> None:
        """Sets the times of last access and modification, in nanoseconds since 1970; None leaves one unchanged."""
        self._native.utime(path, *ns).wait()

    def copy(self, source: Path, target: Path) -> int:
        """Copies a file within the export; returns the number of bytes."""
        return self._native.copy(source, target).wait()

    def put(self, local: Path, path: Path, progress: Callable[[int], object] | None = None) -> int:
        """Copies a local file to the export; returns the number of bytes.

        The file gets its name when all data is stable. ``progress`` gets the number of copied bytes, every 100 ms and at
        the end.
        """
        return self._native.put(local, path).wait(progress)

    def get(self, path: Path, local: Path, progress: Callable[[int], object] | None = None) -> int:
        """Copies a file to the local file system, as ``put``."""
        return self._native.get(path, local).wait(progress)


def _counters(counts: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("calls", "bytes_read", "bytes_written"), counts))


def _stat_or_error(found: tuple[Any, ...] | OSError) -> Stat | OSError:
    return found if isinstance(found, OSError) else Stat._make(found)


def _lazy(url: str, settings: Settings) -> Client:
    return Client(url, connect=False, **settings._asdict())
