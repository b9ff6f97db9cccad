"""Open files."""

from __future__ import annotations

import atexit
import io
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from . import _native
from ._mode import Access
from ._stat import Stat

if TYPE_CHECKING:
    from ._client import Client

_CHUNK = 8 << 20
"""A read of more bytes first asks for the size of the file, so that no more memory is allocated than needed."""

_open_files: weakref.WeakSet[File] = weakref.WeakSet()
# Clients whose sessions end with the interpreter.
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class OpenFile:
    """What the files of ``millrace_nfs`` and of ``millrace_nfs.aio`` have in common."""

    _path: str
    _access: Access
    closed: Any
    """Whether the file is closed."""

    @property
    def name(self) -> str:
        """The path with which the file was opened."""
        return self._path

    @property
    def mode(self) -> str:
        """The mode, as of ``io.FileIO``."""
        return self._access.mode

    def readable(self) -> bool:
        """Whether the file is open for reading."""
        return self._access.read

    def writable(self) -> bool:
        """Whether the file is open for writing."""
        return self._access.write or self._access.append

    def seekable(self) -> bool:
        """True: files have a cursor."""
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check_readable(self) -> None:
        self._check_open()
        if not self.readable():
            raise io.UnsupportedOperation("the file is not open for reading")

    def _check_writable(self) -> None:
        self._check_open()
        if not self.writable():
            raise io.UnsupportedOperation("the file is not open for writing")


class File(OpenFile, io.RawIOBase):
    """An open file, from ``Client.open``.

    It is a binary stream as those of ``io``: sequential reads are read ahead, and writes are sent in the background.
    ``flush`` sends written data, so that all clients see it; ``sync`` and ``close`` also make it stable, and raise the
    error of a failed write. Unlike raw files of ``io``, ``read`` returns less than requested only at the end of the file,
    and ``write`` writes everything.

    A file can be used after ``os.fork`` in both processes: the child opens it again by path at its first operation, and
    has its own cursor. Data that the parent has not flushed belongs to the parent. Files opened for reading pickle; they
    are opened again by path.

    For reading lines wrap it: ``io.BufferedReader(file)``.
    """

    def __init__(self, client: Client, path: str, access: Access, native: _native.File) -> None:
        self._client = client
        self._path = path
        self._access = access
        self._native = native
        if self.writable():
            _open_files.add(self)

    def fileno(self) -> int:
        """Raises ``OSError``: the file has no descriptor."""
        raise io.UnsupportedOperation("a file of an NFS client has no file descriptor")

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads up to ``size`` bytes, or all to the end of the file."""
        self._check_readable()
        if size is None or size < 0 or size > _CHUNK:
            rest = max(self.stat().st_size - self.tell(), 0)
            size = rest if size is None or size < 0 else min(size, rest)
        return self._native.read(size).wait()

    def readall(self) -> bytes:
        """Reads all to the end of the file."""
        return self.read(-1)

    def read1(self, size: int = -1, /) -> bytes:
        """As ``read``, for ``io.TextIOWrapper``."""
        return self.read(size if size >= 0 else io.DEFAULT_BUFFER_SIZE)

    def readinto(self, buffer: Any, /) -> int:
        """Fills ``buffer`` (a bytearray, a writable memoryview or NumPy array) from the cursor.

        Returns the number of bytes, less than its size only at the end of the file. The data is copied once, from the
        memory that receives it.
        """
        self._check_readable()
        return self._native.readinto(buffer).wait()

    def write(self, data: Any, /) -> int:
        """Writes all of ``data`` (bytes, or an object with the buffer protocol); returns its size in bytes."""
        self._check_writable()
        return self._native.write(data).wait()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the cursor; returns its new offset."""
        self._check_open()
        return self._native.seek(offset, whence).wait()

    def tell(self) -> int:
        """The offset of the cursor."""
        self._check_open()
        return self._native.position()

    def truncate(self, size: int | None = None, /) -> int:
        """Sets the size of the file to ``size`` bytes, or to the cursor."""
        self._check_writable()
        return self._native.truncate(self.tell() if size is None else size).wait()

    def flush(self) -> None:
        """Sends all written data: other clients see it then."""
        self._check_open()
        if self.writable() and not self._native.closed:
            self._native.flush(False).wait()

    def lock(
        self, start: int = 0, length: int | None = None, *, exclusive: bool = True, wait: bool = True
    ) -> bool:
        """Locks a range of bytes; without ``length`` to the end of the file, however long it becomes. Needs NFSv4.

        Locks exclude other clients and other files of this one. Without ``wait`` it returns False if another lock
        conflicts. ``close`` unlocks the file.
        """
        self._check_open()
        return self._native.lock(start, length, exclusive, wait).wait()

    def unlock(self, start: int = 0, length: int | None = None) -> None:
        """Makes all written data stable, and unlocks a range of bytes."""
        self._check_open()
        self._native.unlock(start, length).wait()

    def sync(self) -> None:
        """Makes all written data stable, as ``os.fsync``."""
        self._check_open()
        self._native.flush(True).wait()

    def stat(self) -> Stat:
        """The attributes of the file; the size includes all written data."""
        self._check_open()
        return Stat._make(self._native.stat().wait())

    def close(self) -> None:
        """Makes all written data stable, unlocks the file and closes it. It is closed even if that fails."""
        if self.closed:
            return
        _open_files.discard(self)
        try:
            if not self._native.closed and not self._client.closed:
                self._native.close().wait()
        finally:
            super().close()

    def __reduce__(self) -> Any:
        self._check_open()
        if self.writable():
            raise TypeError("a file that is open for writing cannot be pickled")
        return _reopen, (self._client, self._path, self.tell())

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.mode
        return f"<millrace_nfs.File {self._path!r} {state}>"


def _reopen(client: Client, path: str, offset: int) -> File:
    file = client.open(path, "rb")
    file.seek(offset)
    return file


@atexit.register
def _close_all() -> None:
    """Makes the data of open files stable, and ends the sessions, before the interpreter ends."""
    for file in list(_open_files):
        try:
            file.close()
        except Exception as error:
            print(f"millrace: {file.name} was not closed, and written data may be lost: {error}", file=sys.stderr)
    for client in list(_open_clients):
        client._native.close()


# The files of the parent are not open for writing in a forked child, unless it uses them. The sessions are the parent's.
os.register_at_fork(after_in_child=_open_files.clear)
os.register_at_fork(after_in_child=_open_clients.clear)
