"""Modes of files, as in the built-in open()."""

from __future__ import annotations

from typing import Literal, NamedTuple, Union

_Reads = Literal["rb", "br", "rb+", "r+b", "+rb", "br+", "b+r", "+br"]
_Writes = Literal["wb", "bw", "wb+", "w+b", "+wb", "bw+", "b+w", "+bw"]
_Appends = Literal["ab", "ba", "ab+", "a+b", "+ab", "ba+", "b+a", "+ba"]
_Creates = Literal["xb", "bx", "xb+", "x+b", "+xb", "bx+", "b+x", "+bx"]
BinaryMode = Union[_Reads, _Writes, _Appends, _Creates]
"""The modes of binary files."""

_TextReads = Literal["r", "rt", "tr", "r+", "+r", "rt+", "r+t", "+rt", "tr+", "t+r", "+tr"]
_TextWrites = Literal["w", "wt", "tw", "w+", "+w", "wt+", "w+t", "+wt", "tw+", "t+w", "+tw"]
_TextAppends = Literal["a", "at", "ta", "a+", "+a", "at+", "a+t", "+at", "ta+", "t+a", "+ta"]
_TextCreates = Literal["x", "xt", "tx", "x+", "+x", "xt+", "x+t", "+xt", "tx+", "t+x", "+tx"]
TextMode = Union[_TextReads, _TextWrites, _TextAppends, _TextCreates]
"""The modes of text files."""


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

