"""Hugging Face datasets saves and loads data sets by URL. `load_dataset(data_files=URL)` removes the host of a URL, and
cannot be used."""

import sys

import datasets

url = sys.argv[1]  # nfs+tcp://HOST/EXPORT/DIRECTORY
datasets.Dataset.from_dict({"text": [f"line {n}" for n in range(1000)]}).save_to_disk(f"{url}/lines")
lines = datasets.load_from_disk(f"{url}/lines")
print(len(lines), lines[999])
