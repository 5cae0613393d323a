"""Blocks of GPU memory from another process, by the driver's virtual memory management.
Needs a GPU and PyTorch."""

import ctypes


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


FILE_DESCRIPTOR, DEVICE, READ_WRITE = 1, 1, 3


class Blocks:
    """Blocks of the agent, mapped at one address of this process."""

    def __init__(self, fds, block_bytes, size):
        import os

        import torch

        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.sync = torch.cuda.synchronize
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.enter()
        self.block_bytes, self.handles = block_bytes, []
        for fd in fds:
            handle = ctypes.c_ulonglong()
            self.call(
                "cuMemImportFromShareableHandle",
                ctypes.byref(handle),
                ctypes.c_void_p(fd),
                ctypes.c_int(FILE_DESCRIPTOR),
            )
            os.close(fd)
            self.handles.append(handle)
        self.size = -(-size // block_bytes) * block_bytes
        address = ctypes.c_ulonglong()
        zero = ctypes.c_ulonglong(0)
        size, aligned = ctypes.c_size_t(self.size), ctypes.c_size_t(0)
        self.call("cuMemAddressReserve", ctypes.byref(address), size, aligned, zero, zero)
        self.address = address.value

    def enter(self):
        """The primary context, which is PyTorch's, in this thread too."""
        context = ctypes.c_void_p()
        device = ctypes.c_int(0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        result = getattr(self.driver, name)(*args)
        if result:
            raise OSError(f"{name} failed with CUDA error {result}")

    def map(self, blocks):
        zero = ctypes.c_ulonglong(0)
        size = ctypes.c_size_t(self.block_bytes)
        for place, block in enumerate(blocks):
            at = ctypes.c_ulonglong(self.address + place * self.block_bytes)
            self.call("cuMemMap", at, size, ctypes.c_size_t(0), self.handles[block], zero)
        access = Access(Location(DEVICE, 0), READ_WRITE)
        whole = ctypes.c_size_t(len(blocks) * self.block_bytes)
        at = ctypes.c_ulonglong(self.address)
        self.call("cuMemSetAccess", at, whole, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self):
        self.sync()
        at, size = ctypes.c_ulonglong(self.address), ctypes.c_size_t(self.size)
        self.call("cuMemUnmap", at, size)
