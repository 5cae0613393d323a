"""Prints the name of the GPU, and the bytes a second that move to it from pinned memory: the
best of some copies, by the driver alone. Usage: bandwidth.py BYTES"""

import ctypes
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reward-server"))

from driver import Address, Driver, Size


def main():
    size = int(sys.argv[1])
    driver = Driver()
    host, stream = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuMemHostAlloc", ctypes.byref(host), Size(size), ctypes.c_uint(0))
    driver.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    device = driver.allocate(size)
    best = 0.0
    for _ in range(6):
        begun = time.perf_counter()
        driver.call("cuMemcpyHtoDAsync_v2", Address(device), host, Size(size), stream)
        driver.call("cuStreamSynchronize", stream)
        best = max(best, size / (time.perf_counter() - begun))
    print(driver.name())
    print(best)


if __name__ == "__main__":
    main()
