"""PyTorch saves and loads a distributed checkpoint, here with one process."""

import sys

import torch
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

url = sys.argv[1]  # nfs+tcp://HOST/EXPORT/DIRECTORY
# Files are stable when they are closed, and have no descriptor for os.fsync.
checkpoint.save({"layer": torch.arange(1000.0)}, storage_writer=FsspecWriter(f"{url}/checkpoint", sync_files=False))
state = {"layer": torch.zeros(1000)}
checkpoint.load(state, storage_reader=FsspecReader(f"{url}/checkpoint"))
print(state["layer"].sum().item())
