"""Blocks of GPU memory from another process, by the driver's virtual memory management."""

import ctypes
import os

from driver import Address, Driver, Size


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


FILE_DESCRIPTOR, DEVICE, READ_WRITE = 1, 1, 3
NOTHING = ctypes.c_ulonglong(0)


class Blocks:
    """Blocks of the agent, mapped at one address of this process."""

    def __init__(self, fds, block_bytes, size):
        self.driver = Driver()
        self.block_bytes, self.handles, self.mapped = block_bytes, [], 0
        self.address, self.size = 0, -(-size // block_bytes) * block_bytes
        try:
            self.take(fds)
            address = Address()
            self.driver.call(
                "cuMemAddressReserve",
                ctypes.byref(address),
                Size(self.size),
                Size(0),
                Address(0),
                NOTHING,
            )
            self.address = address.value
        except OSError:
            self.close()
            raise

    def take(self, fds):
        """Imports the blocks; each descriptor is closed, whatever becomes of it."""
        left = list(fds)
        try:
            while left:
                handle = ctypes.c_ulonglong()
                self.driver.call(
                    "cuMemImportFromShareableHandle",
                    ctypes.byref(handle),
                    ctypes.c_void_p(left[0]),
                    ctypes.c_int(FILE_DESCRIPTOR),
                )
                self.handles.append(handle)
                os.close(left.pop(0))
        finally:
            for fd in left:
                os.close(fd)

    def map(self, blocks):
        if self.mapped:
            raise ValueError("blocks are attached already: detach them first")
        if len(blocks) * self.block_bytes != self.size:
            raise ValueError(f"{len(blocks)} blocks are not the {self.size} bytes of the image")
        try:
            for place, block in enumerate(blocks):
                at = Address(self.address + place * self.block_bytes)
                handle, whole = self.handles[block], Size(self.block_bytes)
                self.driver.call("cuMemMap", at, whole, Size(0), handle, NOTHING)
                self.mapped += self.block_bytes
            access = Access(Location(DEVICE, self.driver.device.value), READ_WRITE)
            at, whole = Address(self.address), Size(self.mapped)
            self.driver.call("cuMemSetAccess", at, whole, ctypes.byref(access), Size(1))
        except OSError:
            self.unmap()
            raise

    def unmap(self):
        """Nothing of the blocks is used any more when this returns."""
        if self.mapped:
            self.driver.sync()
            self.driver.call("cuMemUnmap", Address(self.address), Size(self.mapped))
            self.mapped = 0

    def close(self):
        """Gives all of it back: what a process has imported is not free on the GPU."""
        self.unmap()
        for handle in self.handles:
            self.driver.call("cuMemRelease", handle)
        self.handles = []
        if self.address:
            self.driver.call("cuMemAddressFree", Address(self.address), Size(self.size))
            self.address = 0
