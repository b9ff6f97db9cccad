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

    @property
    def mode(self) -> str:
        """The mode, as of ``io.FileIO``."""
        if self.append:
            return "ab+" if self.read else "ab"
        if self.create_new:
            return "xb+" if self.read else "xb"
        if self.write:
            return "rb+" if self.read else "wb"
        return "rb"


def access(mode: str) -> tuple[Access, bool]:
    """The access of a mode, and whether it is one of text."""
    kinds = [letter for letter in mode if letter in "rwax"]
    plus = "+" in mode
    if len(kinds) != 1 or set(mode) - set("rwax+bt") or len(set(mode)) != len(mode) or {"b", "t"} <= set(mode):
        raise ValueError(f"invalid mode: {mode!r}; expected r, w, a or x, and optionally +, and b or t")
    kind = kinds[0]
    wanted = Access(
        read=kind == "r" or plus,
        write=kind in "wx" or (kind == "r" and plus),
        append=kind == "a",
        truncate=kind == "w",
        create=kind in "wa",
        create_new=kind == "x",
    )
    return wanted, "b" not in mode

