"""Modes of files, as in the built-in open()."""

from __future__ import annotations

from typing import NamedTuple


class Access(NamedTuple):
    """What a mode means, as the native client takes it."""

    read: bool
    write: bool
    append: bool
    truncate: bool
    create: bool
    create_new: bool


def access(mode: str) -> Access:
    """The access of a mode without ``t`` and ``b``."""
    kinds = [letter for letter in mode if letter in "rwax"]
    plus = "+" in mode
    if len(kinds) != 1 or set(mode) - set("rwax+") or len(set(mode)) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}; expected r, w, a or x, and optionally +")
    kind = kinds[0]
    return Access(
        read=kind == "r" or plus,
        write=kind in "wx" or (kind == "r" and plus),
        append=kind == "a",
        truncate=kind == "w",
        create=kind in "wa",
        create_new=kind == "x",
    )

