"""DuckDB queries files of an export, also by patterns, and writes results to it."""

import sys

import duckdb
import fsspec

url = sys.argv[1]  # nfs+tcp://HOST/EXPORT/DIRECTORY
connection = duckdb.connect()
connection.register_filesystem(fsspec.url_to_fs(url)[0])
for part in range(2):
    query = f"SELECT range AS n, range % 4 AS kind FROM range({part * 1000}, {part * 1000 + 1000})"
    connection.execute(f"COPY ({query}) TO '{url}/part{part}.parquet' (FORMAT parquet)")
print(connection.execute(f"SELECT kind, count(*) FROM '{url}/part*.parquet' GROUP BY kind ORDER BY kind").fetchall())
