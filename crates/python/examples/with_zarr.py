"""zarr 3 stores arrays by URL."""

import sys

import numpy
import zarr

url = sys.argv[1]  # nfs+tcp://HOST/EXPORT/DIRECTORY
array = zarr.create_array(f"{url}/array", shape=(1000, 1000), chunks=(100, 250), dtype="int64")
array[:] = numpy.arange(1_000_000).reshape(1000, 1000)
print(zarr.open_array(f"{url}/array", mode="r")[999, 990:].tolist())
