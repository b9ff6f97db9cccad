"""Trees of directories, which the native client reads in one operation, and the text of files."""

from __future__ import annotations

import errno
import io
import re
from fnmatch import fnmatchcase
from typing import Any, Iterable, Iterator, NamedTuple

from ._stat import Stat

ALL_LEVELS = 1 << 32
"""The depth of a tree without a limit."""

Found = Iterable["tuple[str, tuple[Any, ...], bool]"]
"""The objects of a tree: paths below its top, attributes, whether a symbolic link leads to them."""

Walk = Iterator["tuple[str, list[str], list[str]]"]
"""Directories with the names of their directories and of their other objects, as of ``os.walk``."""


class DiskUsage(NamedTuple):
    """Sizes of a file system in bytes, as of ``shutil.disk_usage``."""

    total: int
    used: int
    free: int


def disk_usage(total: int, available: int, free: int) -> DiskUsage:
    """The sizes from those of FSSTAT."""
    return DiskUsage(total, total - free, available)


def walk(top: str, found: Found) -> Walk:
    """The directories from the top down, sorted by name. Names that the caller removes are left out."""
    levels: dict[str, tuple[list[str], list[str]]] = {}
    links = set()
    for path, stat, is_link in sorted(found):
        parent, _, name = path.rpartition("/")
        is_directory = Stat._make(stat).is_dir()
        levels.setdefault(parent, ([], []))[0 if is_directory else 1].append(name)
        if is_directory and is_link:
            links.add(path)
    waiting = [""]
    while waiting:
        path = waiting.pop()
        directories, others = levels.get(path, ([], []))
        yield _join(top, path), directories, others
        below = [_join(path, name) for name in reversed(directories)]
        waiting.extend(one for one in below if one not in links)


def _join(top: str, below: str) -> str:
    separator = "/" if top and below and not top.endswith("/") else ""
    return f"{top}{separator}{below}"


class Pattern(NamedTuple):
    """A pattern of ``glob``: the directory with its matches, and their names."""

    top: str
    parts: list[str]

    @property
    def depth(self) -> int:
        """The number of levels that may match."""
        return ALL_LEVELS if "**" in self.parts else len(self.parts)

    def matches(self, found: Found) -> list[str]:
        """The paths that match, sorted."""
        return [_join(self.top, path) for path, *_ in sorted(found) if _matches(path.split("/"), self.parts)]


def pattern(text: str) -> Pattern | None:
    """The pattern; None without special characters."""
    parts = [part for part in text.split("/") if part]
    fixed = next((n for n, part in enumerate(parts) if re.search(r"[*?[]", part)), None)
    if fixed is None:
        return None
    root = "/" if text.startswith("/") else ""
    return Pattern(root + "/".join(parts[:fixed]), parts[fixed:])


def _matches(names: list[str], parts: list[str]) -> bool:
    reached = _skip({0}, parts)
    for name in names:
        after = set()
        for at in reached - {len(parts)}:
            part = parts[at]
            if name.startswith(".") and not part.startswith("."):
                continue
            if part == "**":
                after.add(at)
            elif fnmatchcase(name, part):
                after.add(at + 1)
        reached = _skip(after, parts)
    return len(parts) in reached


def _skip(reached: set[int], parts: list[str]) -> set[int]:
    """Adds the places behind each ``**``, which can stand for no directory."""
    for at, part in enumerate(parts):
        if part == "**" and at in reached:
            reached.add(at + 1)
    return reached


def decoded(data: bytes, encoding: str | None, errors: str | None) -> str:
    """The text of a file."""
    return io.TextIOWrapper(io.BytesIO(data), encoding, errors).read()


def encoded(text: str, encoding: str | None, errors: str | None, newline: str | None) -> bytes:
    """The data of a file with the text."""
    data = io.BytesIO()
    with io.TextIOWrapper(data, encoding, errors, newline) as file:
        file.write(text)
        file.flush()
        return data.getvalue()


def xattr_name(attribute: str) -> str:
    """The name of an extended attribute in NFS, which has those of users only (RFC 8276)."""
    prefix, _, name = attribute.partition(".")
    if prefix != "user" or not name:
        raise OSError(errno.EOPNOTSUPP, f"cannot use the extended attribute {attribute}: NFS has only those of user.*")
    return name
