"""NFS over RDMA and TCP in user space.

``Client`` works by path in an export, and opens files (``File``). ``millrace_nfs.aio`` has the same for asyncio, and
``millrace_nfs.fsspec`` file systems for fsspec, which are registered for ``nfs://``, ``nfs+rdma://`` and ``nfs+tcp://``.

>>> import millrace_nfs
>>> with millrace_nfs.Client("nfs://server/data?proto=tcp") as client:
...     client.write_bytes("greeting", b"hello")
...     with client.open("greeting") as file:
...         print(file.read())
b'hello'
"""

from ._client import Client, exports
from ._file import File
from ._native import __version__
from ._stat import DirEntry, Stat
from ._tree import DiskUsage

__all__ = ["Client", "DirEntry", "DiskUsage", "File", "Stat", "__version__", "exports"]
