"""What both file systems for fsspec have in common."""

from __future__ import annotations

import errno
from typing import Any, Iterable

from fsspec.utils import stringify_path  # type: ignore[import-untyped]

from ._exports import PROTOCOLS, Exports, limits, split_url
from ._stat import Stat


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


def directory(path: str) -> dict[str, Any]:
    """A directory that leads to exports."""
    return {"name": path, "size": 0, "type": "directory", "islink": False}


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


def of_path(data: Any, path: str) -> Any:
    """The data of a range, or its error with the path."""
    if isinstance(data, OSError) and data.filename is None:
        data.filename = path
    return data


def checked(out: list[Any], on_error: str) -> list[Any]:
    if on_error == "raise":
        for result in out:
            if isinstance(result, BaseException):
                raise result
    return out
