"""PyTorch saves and loads a distributed checkpoint, here with one process, a file, and the records of a data set."""

import sys

import fsspec
import torch
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    """Records of 4 numbers. The worker of a loader reads those of a batch at the same time."""

    def __init__(self, url):
        self.fs, self.path = fsspec.url_to_fs(url)

    def __len__(self):
        return self.fs.size(self.path) // 16

    def __getitems__(self, numbers):
        starts = [number * 16 for number in numbers]
        ends = [start + 16 for start in starts]
        found = self.fs.cat_ranges([self.path] * len(starts), starts, ends, on_error="raise")
        return [torch.frombuffer(bytearray(one), dtype=torch.float32) for one in found]


def main(url):
    layer = torch.arange(1000.0)
    # Files are stable when they are closed, and have no descriptor for os.fsync.
    checkpoint.save({"layer": layer}, storage_writer=FsspecWriter(f"{url}/checkpoint", sync_files=False))
    state = {"layer": torch.zeros(1000)}
    checkpoint.load(state, storage_reader=FsspecReader(f"{url}/checkpoint"))
    print(state["layer"].sum().item())

    with fsspec.open(f"{url}/model.pt", "wb") as file:
        torch.save(state, file)
    with fsspec.open(f"{url}/model.pt") as file:
        print(torch.load(file)["layer"].sum().item())

    with fsspec.open(f"{url}/records", "wb") as file:
        file.write(layer.numpy().tobytes())
    loader = DataLoader(Records(f"{url}/records"), batch_size=50, shuffle=True, num_workers=2)
    print(sum(batch.sum().item() for batch in loader))


if __name__ == "__main__":
    main(sys.argv[1])  # nfs+tcp://HOST/EXPORT/DIRECTORY
