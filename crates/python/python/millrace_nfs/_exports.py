"""Paths of a server: their URLs, and the exports that contain them."""

from __future__ import annotations

import errno
from typing import Any, Callable, Generic, TypeVar
from urllib.parse import quote, unquote

URL_OPTIONS = (
    *("vers", "proto", "provider", "nconnect", "busy_poll", "rsize", "wsize", "mountport", "registration"),
    *("sec", "xprtsec", "tls_ca", "tls_cert", "tls_key", "tls_name"),
)
"""Options of URLs that have a value; the others are ``resvport`` and ``noresvport``."""

PROTOCOLS = ("nfs", "nfs+rdma", "nfs+tcp")

_Client = TypeVar("_Client")


def split_url(url: str) -> tuple[dict[str, Any], str]:
    """The storage options of a URL, and the path at the server. A text without a protocol is a path.

    ``?`` begins options only if all that follows are options: it also occurs in patterns of ``glob``.
    """
    protocol, separator, rest = url.partition("://")
    if not separator or protocol not in PROTOCOLS:
        return {}, _path(url)
    _, plus, proto = protocol.partition("+")
    options: dict[str, Any] = {"proto": proto} if plus else {}
    path, question, query = rest.rpartition("?")
    found = _options(query) if question else None
    if found is None:
        path = rest
    else:
        stated = found.pop("proto", proto) if plus else proto
        if stated not in (proto, "auto"):
            others = "&".join(option for option in query.split("&") if not option.startswith("proto="))
            correct = f"{protocol}://{path}{'?' * bool(others)}{others}"
            raise ValueError(f"the scheme {protocol}:// contradicts proto={stated}; write {correct!r}")
        options.update(found)
    authority, slash, tail = path.partition("/")
    host, port = _authority(authority)
    if host:
        options["host"] = host
    if port is not None:
        options["port"] = port
    return options, _path(slash + tail)


def _path(text: str) -> str:
    return "/" + text.strip("/")


def _options(query: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for option in query.split("&"):
        name, separator, value = option.partition("=")
        if separator and name in URL_OPTIONS:
            found[name] = unquote(value)
        elif option in ("resvport", "noresvport"):
            found["resvport"] = option == "resvport"
        else:
            return None
    return found


def _authority(authority: str) -> tuple[str, int | None]:
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        return authority, None
    if not port.isdigit():
        raise ValueError(f"invalid port in nfs://{authority}/")
    return host, int(port)


class Exports(Generic[_Client]):
    """The clients of a server's exports. A path belongs to the longest export that contains it."""

    def __init__(self, host: str, port: int | None, options: dict[str, Any], connect: Callable[..., _Client]) -> None:
        if not host:
            raise ValueError("the host is missing: use nfs://HOST/EXPORT/PATH, or the option host")
        self._server = host if port is None else f"{host}:{port}"
        options = dict(options)
        resvport = options.pop("resvport", None)
        query = [f"{name}={quote(str(options.pop(name)))}" for name in URL_OPTIONS if options.get(name) is not None]
        if resvport is not None:
            query.append("resvport" if resvport else "noresvport")
        self._query = "?" + "&".join(query) if query else ""
        self._settings = options
        self._connect = connect
        self._clients: dict[str, _Client] = {}
        self.names: list[str] | None = None
        """Names of the exports, once they were requested; empty if the server does not disclose them."""

    def url(self, path: str) -> str:
        """The URL of a path for a client."""
        return f"nfs://{self._server}{quote(path)}{self._query}"

    def plain_url(self, path: str) -> str:
        """The URL of a path without options, as fsspec uses it."""
        return f"nfs://{self._server}{path}"

    def of(self, path: str) -> tuple[_Client, str] | None:
        """The client for a path, and the path in its export; None if an export is not known yet, or none contains it."""
        names = self.names or self._clients
        known = [name for name in names if name == "/" or path == name or path.startswith(name + "/")]
        if not known:
            return None
        name = max(known, key=len)
        if name not in self._clients:
            self._clients[name] = self.client(name)
        return self._clients[name], path[len(name.rstrip("/")) :]

    def client(self, path: str) -> _Client:
        """A new client for the URL of a path."""
        return self._connect(self.url(path), **self._settings)

    def add(self, name: str, client: _Client) -> None:
        """Adds an export that the server does not disclose."""
        self._clients[name] = client

    def below(self, path: str) -> list[str]:
        """The directories in ``path`` that lead to exports."""
        start = path.rstrip("/") + "/"
        names = {start + name[len(start) :].split("/")[0] for name in self.names or self._clients if name.startswith(start)}
        return sorted(names - {start})

    def clients(self) -> list[_Client]:
        """All clients."""
        return list(self._clients.values())


def missing(path: str) -> FileNotFoundError:
    """The error of a path that no export contains."""
    return FileNotFoundError(errno.ENOENT, "no export of the server contains the path", path)


def limits(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Offset and length of a range as in slices; negative numbers count from the end of the file."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(last - first, 0)
