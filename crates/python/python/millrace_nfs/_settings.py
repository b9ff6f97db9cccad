"""Settings of clients that are not part of the URL."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Settings(NamedTuple):
    """The arguments of ``millrace_nfs.Client``, which documents them; None stands for the default."""

    timeout: Optional[float] = None
    connect_timeout: Optional[float] = None
    retry: Optional[float] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    gids: Optional[list[int]] = None
