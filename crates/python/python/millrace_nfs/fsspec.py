"""File systems for fsspec, registered for ``nfs://``, and for ``nfs+rdma://`` and ``nfs+tcp://`` with that transport.

>>> import fsspec
>>> with fsspec.open("nfs://server/data/table.csv") as file:
...     print(file.readline())

pandas takes ``nfs://`` for a URL of urllib: use ``nfs+rdma://`` or ``nfs+tcp://`` with it.

Storage options are ``host``, ``port``, the options of URLs (``proto``, ``vers``, ``nconnect``, ``rsize``, ``wsize`` and
others of ``millrace_nfs.Client``), the arguments of ``millrace_nfs.Client`` (``timeout``, ``retry``, ``uid`` and others), and
``auto_mkdir``.
"""

from ._fsspec_async import AsyncMillraceFileSystem
from ._fsspec_file import MillraceFile
from ._fsspec_sync import MillraceFileSystem, RdmaFileSystem, TcpFileSystem

__all__ = ["AsyncMillraceFileSystem", "MillraceFile", "MillraceFileSystem", "RdmaFileSystem", "TcpFileSystem"]
