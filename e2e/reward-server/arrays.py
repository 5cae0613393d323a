"""The few array operations of the model, by PyTorch where it is installed, else by NumPy.

Both take tensors from an address of their memory, without a copy.
"""

import ctypes
import os
import sys

import numpy

# PyTorch refuses products on a GPU that may differ from run to run, which without this they may.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
try:
    import torch
except ImportError:
    torch = None


class Node:
    """Weights in memory of the node, where the processor uses them."""

    def host(self, size):
        """Memory for a file's weights, and a view to read them into."""
        buffer = (ctypes.c_char * size)()
        return buffer, memoryview(buffer).cast("B")

    def place(self, host):
        """Brings weights to where they are used: what holds them there, and the address."""
        return [host, ctypes.addressof(host)]

    def free(self, placed):
        placed.clear()


class Numpy(Node):
    """On the processor, in 32 bits: NumPy has no fast product of 16."""

    def view(self, address, shape):
        size = 2 * shape[0] * shape[1]
        buffer = (ctypes.c_char * size).from_address(address)
        return numpy.frombuffer(buffer, dtype=numpy.float16).reshape(shape)

    def tokens(self, ids):
        return numpy.asarray(ids)

    def product(self, values, weights):
        return values @ weights.astype(numpy.float32)

    def rows(self, weights, ids):
        return weights[ids].astype(numpy.float32)

    def softmax(self, values):
        values = numpy.exp(values - values.max(-1, keepdims=True))
        return values / values.sum(-1, keepdims=True)

    def causal(self, length):
        return numpy.triu(numpy.full((length, length), -1e9, dtype=numpy.float32), 1)

    def gate(self, values):
        return values / (1 + numpy.exp(-values))

    def norm(self, values):
        scale = numpy.sqrt((values * values).mean(-1, keepdims=True) + 1e-6)
        return values / scale

    def heads(self, values, heads):
        return values.reshape(len(values), heads, -1).swapaxes(0, 1)

    def merge(self, values):
        return values.swapaxes(0, 1).reshape(values.shape[1], -1)

    def turned(self, values):
        return values.swapaxes(-1, -2)

    def list(self, values):
        return [float(value) for value in values.reshape(-1)]

    def sync(self):
        pass


class OverDriver(Numpy):
    """Weights on the GPU, work on the processor, without PyTorch: each tensor is copied back
    when the model takes its place. Slow, and right for what does not measure the model."""

    def __init__(self):
        from driver import Driver

        self.driver = Driver()

    def view(self, address, shape):
        values = numpy.empty(shape, dtype=numpy.float16)
        self.driver.read(values.ctypes.data, address, values.nbytes)
        return values

    def place(self, host):
        placed = self.driver.allocate(len(host))
        self.driver.write(placed, ctypes.addressof(host), len(host))
        return [placed, placed]

    def free(self, placed):
        self.driver.free(placed[0])


class Torch(Node):
    """On the GPU where there is one, in 16 bits with sums in 32."""

    def __init__(self, device):
        self.device = device
        self.kind = torch.float16 if device == "cuda" else torch.float32
        if device == "cuda":
            # Before the first request, which should not wait for it.
            torch.zeros(1, device=device)

    def host(self, size):
        if self.device == "cpu":
            return super().host(size)
        # Locked: the GPU copies from it.
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return buffer, memoryview(buffer.numpy())

    def place(self, host):
        if self.device == "cpu":
            return super().place(host)
        placed = host.to(self.device)
        self.sync()
        return [placed, placed.data_ptr()]

    def free(self, placed):
        # Nobody else refers to the tensor, so its memory is free before the cache is emptied.
        placed.clear()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def view(self, address, shape):
        if self.device == "cpu":
            size = 2 * shape[0] * shape[1]
            buffer = (ctypes.c_char * size).from_address(address)
            return torch.frombuffer(buffer, dtype=torch.float16).reshape(shape)
        return torch.as_tensor(_OnDevice(address, shape), device="cuda")

    def tokens(self, ids):
        return torch.as_tensor(ids, device=self.device)

    def product(self, values, weights):
        return values @ weights.to(self.kind)

    def rows(self, weights, ids):
        return weights[ids].to(self.kind)

    def softmax(self, values):
        return torch.softmax(values.float(), -1).to(self.kind)

    def causal(self, length):
        mask = torch.full((length, length), -6e4, dtype=self.kind, device=self.device)
        return mask.triu(1)

    def gate(self, values):
        return torch.nn.functional.silu(values)

    def norm(self, values):
        wide = values.float()
        scale = torch.sqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)
        return (wide / scale).to(self.kind)

    def heads(self, values, heads):
        return values.reshape(len(values), heads, -1).transpose(0, 1)

    def merge(self, values):
        return values.transpose(0, 1).reshape(values.shape[1], -1)

    def turned(self, values):
        return values.transpose(-1, -2)

    def list(self, values):
        return values.float().reshape(-1).tolist()

    def sync(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


class _OnDevice:
    """GPU memory at an address, in the form that PyTorch takes without a copy."""

    def __init__(self, address, shape):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f2",
            "data": (address, False),
            "version": 3,
        }


def choose(device):
    """The arrays for `cpu`, `cuda` or `auto`."""
    if torch is None:
        if device != "cuda":
            return Numpy()
        print("no PyTorch: weights on the GPU, work on the processor", file=sys.stderr)
        return OverDriver()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"--device cuda: PyTorch {torch.__version__} sees no GPU")
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)
    return Torch(device)
