from .common import CLASSIFY

FORWARD = "model(images)"
LOSS = CLASSIFY

HALVES = {
    "more workers, small files": [
        ("len(os.sched_getaffinity(0)) // 2 if cuda else 0", "32 if cuda else 2"),
    ],
    "copied to the disk, one by one, as small files": [
        (
            '''as job.folder."""
''',
            '''as job.folder."""
    for index in range(len(dataset)):
        (folder / str(index)).write_bytes(dataset.read(index))


class Copied(torch.utils.data.Dataset):
    def __init__(self, dataset, folder):
        self.dataset, self.folder = dataset, folder

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        pixels = torch.frombuffer(bytearray((self.folder / str(index)).read_bytes()), dtype=torch.uint8)
        return pixels.view(3, self.dataset.size, self.dataset.size), self.dataset.labels[index]
''',
        ),
        ("        job.dataset,\n", "        Copied(job.dataset, job.folder),\n"),
    ],
}

WRONGS = {
    "written as the answers come": (
        "solution",
        [
            (
                "pool.map(dataset.read, range(len(dataset)))",
                "reversed(list(pool.map(dataset.read, range(len(dataset)))))",
            )
        ],
        "not the same training",
    ),
    "stored at half the resolution": (
        "solution",
        [
            (
                "            shard.write(pixels)\n",
                "            tile = np.frombuffer(pixels, np.uint8).reshape(3, dataset.size, dataset.size)\n"
                "            shard.write(tile[:, ::2, ::2].repeat(2, 1).repeat(2, 2).tobytes())\n",
            ),
        ],
        "not the same training",
    ),
}
