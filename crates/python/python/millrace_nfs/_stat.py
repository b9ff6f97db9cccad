"""Attributes of objects."""

from __future__ import annotations

import stat as _stat
from typing import NamedTuple

_TYPES = {"file": _stat.S_IFREG, "directory": _stat.S_IFDIR, "link": _stat.S_IFLNK}


class Stat(NamedTuple):
    """Attributes of an object (``fattr3``, RFC 1813 section 2.5)."""

    type: str
    """``"file"``, ``"directory"``, ``"link"`` or ``"other"``."""
    st_size: int
    """Size in bytes."""
    permissions: int
    """Permission bits."""
    st_uid: int
    """User ID of the owner."""
    st_gid: int
    """Group ID."""
    st_nlink: int
    """Number of hard links."""
    st_ino: int
    """Number of the object in its file system."""
    st_atime_ns: int
    """Time of the last access, in nanoseconds since 1970."""
    st_mtime_ns: int
    """Time of the last change of the data, in nanoseconds since 1970."""
    st_ctime_ns: int
    """Time of the last change of data or attributes, in nanoseconds since 1970."""
    handle: bytes
    """The file handle; empty in entries of directories."""

    @property
    def st_mode(self) -> int:
        """Type and permission bits, as in ``os.stat_result``."""
        return _TYPES.get(self.type, 0) | self.permissions

    @property
    def st_atime(self) -> float:
        """Time of the last access, in seconds since 1970."""
        return self.st_atime_ns / 1e9

    @property
    def st_mtime(self) -> float:
        """Time of the last change of the data, in seconds since 1970."""
        return self.st_mtime_ns / 1e9

    @property
    def st_ctime(self) -> float:
        """Time of the last change of data or attributes, in seconds since 1970."""
        return self.st_ctime_ns / 1e9

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.type == "file"

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type == "directory"

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self.type == "link"


class DirEntry(NamedTuple):
    """An entry of a directory."""

    name: str
    """The name."""
    stat: Stat
    """The attributes. Symbolic links are not followed."""
