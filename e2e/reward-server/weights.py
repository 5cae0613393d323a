"""Where tensors lie in a safetensors file, and files of a given size with random ones.

The image of a model's weights is the data section of its file: the agent copies that and
nothing else (docs/reward-services.md), so a tensor is at its offset in the header.
"""

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy

# The tokens are bytes.
VOCABULARY = 256
CONTEXT = 512
# Random values are taken from a pool of this many, from another place for each tensor.
POOL = 1 << 22


@dataclass(frozen=True)
class Shape:
    """What a model's size follows from."""

    width: int
    layers: int
    heads: int

    def tensors(self):
        """Names and shapes, in the order of the file."""
        d = self.width
        yield "embed", (VOCABULARY, d)
        yield "position", (CONTEXT, d)
        for layer in range(self.layers):
            yield f"{layer}.qkv", (d, 3 * d)
            yield f"{layer}.out", (d, d)
            yield f"{layer}.up", (d, 4 * d)
            yield f"{layer}.down", (4 * d, d)
        yield "reward", (d, 1)

    @property
    def bytes(self):
        return sum(2 * rows * columns for _, (rows, columns) in self.tensors())


def shape_of(size):
    """The shape whose weights come closest to `size` bytes."""
    width = next((w for w in (4096, 1024, 256, 64) if 12 * w * w * 2 * 4 <= size), 32)
    heads = max(1, width // 64)
    least = Shape(width, 1, heads).bytes
    per_layer = Shape(width, 2, heads).bytes - least
    return Shape(width, max(1, 1 + round((size - least) / per_layer)), heads)


def make(path, size, seed):
    """Writes a model of about `size` bytes; its exact size."""
    shape = shape_of(size)
    header, at = {"__metadata__": {"shape": json.dumps(vars(shape))}}, 0
    for name, dims in shape.tensors():
        end = at + 2 * dims[0] * dims[1]
        header[name] = {"dtype": "F16", "shape": list(dims), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 512)
    random = numpy.random.default_rng(seed)
    pool = random.standard_normal(POOL, dtype=numpy.float32)
    pool = numpy.concatenate([pool, pool])
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, (rows, columns) in shape.tensors():
            left, scale = rows * columns, rows**-0.5
            values = (pool * scale).astype(numpy.float16)
            while left:
                start = int(random.integers(POOL))
                some = values[start : start + min(left, POOL)]
                file.write(some.tobytes())
                left -= len(some)
    draft.rename(path)
    return at


@dataclass(frozen=True)
class Layout:
    """A model's file, as its header describes it."""

    path: Path
    shape: Shape
    # Where the data section begins, and its length.
    start: int
    bytes: int
    # Offset in the data section and shape of each tensor.
    tensors: dict


def read_layout(model):
    """The layout of `model.safetensors` in a directory, or of a file."""
    path = Path(model)
    if path.is_dir():
        path /= "model.safetensors"
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    shape = Shape(**json.loads(metadata["shape"]))
    tensors = {name: (t["data_offsets"][0], tuple(t["shape"])) for name, t in header.items()}
    start = 8 + length
    return Layout(path, shape, start, os.path.getsize(path) - start, tensors)
