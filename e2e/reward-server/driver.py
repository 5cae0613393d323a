"""The CUDA driver, in the primary context of the first GPU that this process sees: the same
context as PyTorch's, where that is there too."""

import ctypes
import threading

Address, Size = ctypes.c_ulonglong, ctypes.c_size_t


class Driver:
    """Calls of the driver, from any thread."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.inside = threading.local()
        self.inside.context = True
        self.call("cuInit", ctypes.c_uint(0))
        self.device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *args):
        """Every thread enters the context by its first call."""
        if not getattr(self.inside, "context", False):
            self.inside.context = True
            self.call("cuCtxSetCurrent", self.context)
        result = getattr(self.library, name)(*args)
        if result:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(ctypes.c_int(result), ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'CUDA error').decode()} ({result})")

    def name(self):
        """What the GPU is called."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, ctypes.c_int(256), self.device)
        return name.value.decode()

    def allocate(self, size):
        address = Address()
        self.call("cuMemAlloc_v2", ctypes.byref(address), Size(size))
        return address.value

    def free(self, address):
        self.call("cuMemFree_v2", Address(address))

    def write(self, address, host, size):
        """Copies from memory of the node; it is there when this returns."""
        self.call("cuMemcpyHtoD_v2", Address(address), ctypes.c_void_p(host), Size(size))
        self.sync()

    def read(self, host, address, size):
        """Copies to memory of the node."""
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), Address(address), Size(size))

    def sync(self):
        """Waits for all that the GPU does for this process."""
        self.call("cuCtxSynchronize")
