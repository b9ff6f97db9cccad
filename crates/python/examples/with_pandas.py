"""pandas reads and writes by URL. It takes nfs:// for a URL of urllib: use nfs+tcp:// or nfs+rdma://."""

import sys

import pandas

url = sys.argv[1]  # nfs+tcp://HOST/EXPORT/DIRECTORY
frame = pandas.DataFrame({"city": ["Bern", "Oslo"], "sales": [7, 5]})
frame.to_csv(f"{url}/sales.csv", index=False)
frame.to_parquet(f"{url}/sales.parquet")
print(pandas.read_csv(f"{url}/sales.csv").sales.sum(), pandas.read_parquet(f"{url}/sales.parquet").city.tolist())
