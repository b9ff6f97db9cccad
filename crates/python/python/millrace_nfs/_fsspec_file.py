"""Open files of the file system for fsspec."""

from __future__ import annotations

import errno
import io
import uuid
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile  # type: ignore[import-untyped]

from ._file import File

if TYPE_CHECKING:
    from ._fsspec_sync import MillraceFileSystem

_BUFFER = 128 << 10
"""Small reads and writes are combined to this number of bytes; larger ones pass through."""


class MillraceFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read ahead and written behind by the client.

    ``size`` is that at the time of ``open``. With a ``cache_type`` of fsspec, its cache is used instead of the client's
    read-ahead.
    """

    def __init__(
        self,
        fs: MillraceFileSystem,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_type: str | None = None,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._cached = mode == "rb" and cache_type not in (None, "native")
        self._stream: Any = None
        self._target = path
        size = None
        if mode == "rb":
            self._opened(fs, path, mode)
            size = self._file.stat().st_size
        super().__init__(
            fs,
            path,
            mode,
            block_size or "default",
            autocommit,
            cache_type=cache_type if self._cached else "none",
            cache_options=cache_options,
            size=size,
            **kwargs,
        )
        if mode != "rb":
            if not autocommit and mode != "ab":
                if mode == "xb" and fs.exists(path):
                    raise FileExistsError(errno.EEXIST, "the file exists", path)
                parent, _, name = path.rpartition("/")
                self._target = f"{parent}/.{name}.{uuid.uuid4().hex[:16]}"
            self._opened(fs, self._target, mode)
            self.loc = self._file.tell()

    def _opened(self, fs: MillraceFileSystem, path: str, mode: str) -> None:
        self._file: File = fs._open_native(path, mode)
        wrap = io.BufferedReader if mode == "rb" else io.BufferedWriter
        self._stream = wrap(self._file, _BUFFER)

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._stream is None or bool(self._stream.closed)

    @closed.setter
    def closed(self, _: bool) -> None:
        """The base class sets it; the stream has it."""

    def tell(self) -> int:
        """The offset of the cursor."""
        offset: int = super().tell() if self._cached else self._stream.tell()
        return offset

    def seek(self, loc: int, whence: int = 0) -> int:
        """Moves the cursor of a file that is open for reading."""
        if self.mode != "rb":
            raise OSError(errno.ESPIPE, "seek is for files that are open for reading")
        offset: int = super().seek(loc, whence) if self._cached else self._stream.seek(loc, whence)
        return offset

    def read(self, length: int = -1) -> bytes:
        """Reads up to ``length`` bytes, or all to the end of the file."""
        data: bytes = super().read(length) if self._cached else self._stream.read(-1 if length is None else length)
        return data

    def readinto(self, b: Any) -> int:
        """Fills a buffer."""
        count: int = super().readinto(b) if self._cached else self._stream.readinto(b)
        return count

    def readline(self, size: int = -1) -> bytes:
        """Reads a line."""
        line: bytes = super().readline() if self._cached else self._stream.readline(size)
        return line

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def readlines(self, hint: int = -1) -> list[bytes]:
        """Reads all lines."""
        return list(self)

    def write(self, data: Any) -> int:
        """Writes all of ``data``."""
        count: int = self._stream.write(data)
        return count

    def flush(self, force: bool = False) -> None:
        """Sends written data: other clients see it then."""
        if not self.closed and self.mode != "rb":
            self._stream.flush()

    def close(self) -> None:
        """Makes written data stable and closes the file."""
        if self.closed:
            return
        self._stream.close()
        if self.mode != "rb":
            if self.autocommit:
                self.commit()
            self.fs.invalidate_cache(self.path)

    def commit(self) -> None:
        """Gives the file its name, at the end of a transaction."""
        if self._target != self.path:
            self.fs.mv(self._target, self.path)
            self._target = self.path

    def discard(self) -> None:
        """Removes the file instead."""
        if self._target != self.path:
            self.fs.rm_file(self._target)

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data

    def __reduce__(self) -> Any:
        if self.mode != "rb":
            raise RuntimeError("a file that is open for writing cannot be pickled")
        return _reopen, (self.fs, self.path, self.blocksize, self.tell(), self.cache.name if self._cached else None)


def _reopen(fs: MillraceFileSystem, path: str, block_size: int, loc: int, cache_type: str | None) -> MillraceFile:
    file: MillraceFile = fs._open(path, "rb", block_size, cache_type=cache_type)
    file.seek(loc)
    return file
