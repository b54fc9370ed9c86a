"""Triton's cache for kernels that let nobody confined move a file from one folder to another: Linux before 5.19."""

import os
import uuid

from triton.runtime.cache import FileCacheManager


class FlatCache(FileCacheManager):
    """As its base, but a file is written in the folder where it will be read, and only renamed there."""

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        path = self._make_path(filename)
        written = f"{path}.{uuid.uuid4().hex}"
        with open(written, "wb") as file:
            file.write(data if isinstance(data, bytes) else str(data).encode())
        os.replace(written, path)
        return path
