"""dask reads and writes by URL in many tasks; processes of a cluster connect on their own."""

import sys

import dask.dataframe
import pandas

url = sys.argv[1]  # nfs+tcp://HOST/EXPORT/DIRECTORY
if __name__ == "__main__":
    frame = pandas.DataFrame({"n": range(1000), "kind": [n % 4 for n in range(1000)]})
    dask.dataframe.from_pandas(frame, npartitions=4).to_parquet(f"{url}/table")
    table = dask.dataframe.read_parquet(f"{url}/table")
    print(table.npartitions, table.groupby("kind").n.sum().compute(scheduler="threads").sort_index().tolist())
