"""What both file systems for fsspec have in common."""

from __future__ import annotations

import errno
from typing import Any, Callable, Iterable, Iterator, Tuple

from fsspec.callbacks import NoOpCallback  # type: ignore[import-untyped]
from fsspec.utils import stringify_path  # type: ignore[import-untyped]

from ._exports import PROTOCOLS, Exports, limits, split_url
from ._stat import DirEntry, Stat
from ._tree import ALL_LEVELS, Found


def info_of(path: str, found: Stat, is_link: bool = False) -> dict[str, Any]:
    """The attributes of an object as fsspec has them."""
    return {
        "name": path,
        "size": found.st_size if found.is_file() else 0,
        "type": found.type,
        "mode": found.st_mode,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "nlink": found.st_nlink,
        "ino": found.st_ino,
        "mtime": found.st_mtime,
        "created": found.st_ctime,
        "islink": is_link or found.is_symlink(),
    }


def links_in(directory: str, entries: list[DirEntry]) -> list[str]:
    """The paths of the symbolic links among the entries of a directory."""
    return [join(directory, entry.name) for entry in entries if entry.stat.is_symlink()]


def listed(path: str, entries: list[DirEntry], targets: list[Stat | OSError]) -> list[dict[str, Any]]:
    """The attributes of the entries of the directory ``path``: those of links are their targets', if these exist."""
    found, waiting = [], iter(targets)
    for entry in entries:
        target = next(waiting) if entry.stat.is_symlink() else entry.stat
        found_stat = target if isinstance(target, Stat) else entry.stat
        found.append(info_of(join(path, entry.name), found_stat, is_link=entry.stat.is_symlink()))
    return found


def infos_of(path: str, found: Found) -> dict[str, dict[str, Any]]:
    """The attributes of the objects of a tree by path."""
    paths = ((join(path, below), stat, is_link) for below, stat, is_link in found)
    return {one: info_of(one, Stat._make(stat), is_link) for one, stat, is_link in paths}


def depth_of(maxdepth: int | None) -> int:
    if maxdepth is not None and maxdepth < 1:
        raise ValueError("maxdepth must be at least 1")
    return ALL_LEVELS if maxdepth is None else maxdepth


def files_of(found: dict[str, dict[str, Any]], withdirs: bool, detail: bool) -> Any:
    """The result of ``find``."""
    names = sorted(name for name, info in found.items() if withdirs or info["type"] != "directory")
    return {name: found[name] for name in names} if detail else names


Level = Tuple[str, Any, Any]
"""A directory with its directories and other objects: lists of names, or dictionaries with attributes."""


def walked(
    path: str, found: dict[str, dict[str, Any]], depth: int, topdown: bool, detail: bool
) -> Iterator[Level]:
    """The result of ``walk``. Names that the caller removes are left out. Links to directories are not followed."""
    levels: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for one, info in sorted(found.items()):
        parent, _, name = one.rpartition("/")
        levels.setdefault(parent or "/", ({}, {}))[0 if info["type"] == "directory" else 1][name] = info

    def from_top(first_to_last: bool) -> Iterator[Level]:
        waiting = [(path, depth)]
        while waiting:
            one, left = waiting.pop()
            directories, others = levels.get(one, ({}, {}))
            level = (one, directories, others) if detail else (one, list(directories), list(others))
            yield level
            names = [join(one, name) for name in level[1]] if left > 1 else []
            below = [(name, left - 1) for name in names if not found[name]["islink"]]
            waiting.extend(reversed(below) if first_to_last else below)

    # From the bottom up, each directory follows those in it.
    return from_top(True) if topdown else reversed(list(from_top(False)))


def key_of(info: dict[str, Any]) -> str:
    """A text that changes with the content of a file."""
    return f"{info['ino']:x}-{info['size']:x}-{info['mtime']!r}-{info['created']!r}"


def directory(path: str) -> dict[str, Any]:
    """A directory that leads to exports."""
    return {"name": path, "size": 0, "type": "directory", "islink": False}


def progress_of(callback: Any) -> Callable[[int], object] | None:
    """What a copy calls with the number of its bytes; None for a callback that ignores it."""
    return None if isinstance(callback, NoOpCallback) else callback.absolute_update


def join(parent: str, name: str) -> str:
    return f"{parent.rstrip('/')}/{name}"


class Paths:
    """What both file systems have in common. Paths are those of the server: the export, and the path in it."""

    protocol = PROTOCOLS
    root_marker = "/"
    sep = "/"
    _exports: Exports[Any]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return split_url(stringify_path(path))[1]

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, Any]:
        return split_url(stringify_path(path))[0]

    @classmethod
    def _parent(cls, path: str) -> str:
        return cls._strip_protocol(path).rpartition("/")[0] or "/"

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path, without options."""
        return self._exports.plain_url(self._strip_protocol(name))


def is_of_base(name: str) -> bool:
    """Whether an argument is one of fsspec's classes."""
    return name in (
        "asynchronous",
        "loop",
        "batch_size",
        "use_listings_cache",
        "listings_expiry_time",
        "max_paths",
        "skip_instance_cache",
    )


def per_path(paths: list[str], value: Any) -> list[Any]:
    if not isinstance(paths, list):
        raise TypeError("paths is a list")
    values = list(value) if isinstance(value, Iterable) else [value] * len(paths)
    if len(values) != len(paths):
        raise ValueError("paths, starts and ends have different lengths")
    return values


def ranges_of(
    paths: list[str],
    names: list[tuple[int, str]],
    stats: dict[str, Any],
    starts: list[Any],
    ends: list[Any],
    out: list[Any],
) -> tuple[list[int], list[tuple[bytes, int, int]]]:
    """The ranges of existing files with their places in ``out``, which gets the errors of others."""
    wanted, ranges = [], []
    for n, name in names:
        found = stats[name]
        if isinstance(found, BaseException):
            out[n] = found
            continue
        if found.is_dir():
            out[n] = IsADirectoryError(errno.EISDIR, "a directory", paths[n])
            continue
        wanted.append(n)
        ranges.append((found.handle, *limits(starts[n], ends[n], found.st_size)))
    return wanted, ranges


def checked(out: list[Any], on_error: str) -> list[Any]:
    if on_error == "raise":
        for result in out:
            if isinstance(result, BaseException):
                raise result
    return out
