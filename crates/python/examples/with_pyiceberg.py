"""PyIceberg keeps the files of a table on an export. The catalog, here SQLite, makes its commits atomic."""

import sys

import fsspec
import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.fsspec import FsspecFileIO

url = sys.argv[1]  # nfs+tcp://HOST/EXPORT/DIRECTORY


class NfsFileIO(FsspecFileIO):
    """The files of the warehouse. PyIceberg takes other protocols of fsspec than its own from a class."""

    def get_fs(self, scheme, hostname=None):
        return fsspec.url_to_fs(self.properties["warehouse"])[0]


properties = {"uri": "sqlite://", "warehouse": f"{url}/warehouse", "py-io-impl": f"{__name__}.NfsFileIO"}
catalog = SqlCatalog("catalog", **properties)
catalog.create_namespace("sales")
rows = pyarrow.table({"city": ["Bern", "Oslo"], "sales": [7, 5]})
table = catalog.create_table("sales.cities", schema=rows.schema)
table.append(rows)
first = table.current_snapshot().snapshot_id
table.append(rows)
table.delete("sales < 6")
print(table.scan(row_filter="city = 'Bern'").to_arrow()["sales"].to_pylist(), table.scan().count())
print(table.scan(snapshot_id=first).to_arrow()["city"].to_pylist())
