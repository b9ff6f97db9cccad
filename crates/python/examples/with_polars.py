"""Polars reads and writes open files, and scans data sets of pyarrow; its own readers do not use fsspec."""

import sys

import fsspec
import polars
import pyarrow.dataset

fs, path = fsspec.url_to_fs(sys.argv[1])  # nfs+tcp://HOST/EXPORT/DIRECTORY
with fs.open(f"{path}/sales.parquet", "wb") as file:
    polars.DataFrame({"city": ["Bern", "Oslo"], "sales": [7, 5]}).write_parquet(file)
with fs.open(f"{path}/sales.parquet") as file:
    print(polars.read_parquet(file)["sales"].sum())

# Reads only the columns and row groups that the query needs.
sales = polars.scan_pyarrow_dataset(pyarrow.dataset.dataset(f"{path}/sales.parquet", filesystem=fs))
print(sales.filter(polars.col("sales") > 5).select("city").collect()["city"].to_list())
