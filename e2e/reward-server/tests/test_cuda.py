"""The mapping of the agent's blocks, on a fake of the driver (e2e/fake-cuda), in a process of its
own that loads it."""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BLOCK = 4 << 20
MINE = "ROLLWRIGHT_TEST_INSIDE"


@unittest.skipIf(MINE in os.environ, "this is inside")
class OnTheFake(unittest.TestCase):
    def test_inside(self):
        with tempfile.TemporaryDirectory() as directory:
            build = HERE.parent.parent / "fake-cuda" / "build.sh"
            subprocess.run([build, directory], check=True)
            (Path(directory) / "gpus").write_text(f"1 {96 << 20}")
            fake = {"LD_LIBRARY_PATH": directory, "ROLLWRIGHT_FAKE_CUDA": directory}
            env = {**os.environ, **fake, MINE: "1"}
            command = [sys.executable, __file__]
            inside = subprocess.run(command, env=env, capture_output=True, text=True)
            self.assertEqual(inside.returncode, 0, inside.stderr)
            violations = Path(directory) / "violations"
            self.assertFalse(violations.exists(), violations.exists() and violations.read_text())


@unittest.skipIf(MINE not in os.environ, "run by the test above")
class Inside(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, str(HERE.parent))
        from cuda import Blocks
        from driver import Driver

        self.driver, self.blocks = Driver(), Blocks

    def make(self, count):
        """Blocks of an agent, as handles and descriptors."""
        # Pinned, for descriptors, on device 0.
        what = (ctypes.c_int * 8)(1, 1, 1, 0)
        zero, fds, handles = ctypes.c_ulonglong(0), [], []
        for _ in range(count):
            handle, fd = ctypes.c_ulonglong(), ctypes.c_int()
            size = ctypes.c_size_t(BLOCK)
            self.driver.call("cuMemCreate", ctypes.byref(handle), size, what, zero)
            kind = ctypes.c_int(1)
            self.driver.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, kind, zero)
            handles.append(handle)
            fds.append(fd.value)
        return handles, fds

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.driver.read(ctypes.addressof(data), address, size)
        return data.raw

    def test_blocks_lie_at_one_address_in_the_order_named(self):
        handles, fds = self.make(4)
        for place, fd in enumerate(fds):
            os.pwrite(fd, bytes([place + 65]) * 8, 0)
        blocks = self.blocks(fds, BLOCK, 3 * BLOCK - 7)
        for order in ([2, 0, 3], [1, 2, 0]):
            blocks.map(order)
            found = [self.read(blocks.address + n * BLOCK, 2) for n in range(3)]
            self.assertEqual(found, [bytes([place + 65]) * 2 for place in order])
            self.assertRaises(ValueError, blocks.map, order)
            blocks.unmap()
            blocks.unmap()
        self.assertRaises(ValueError, blocks.map, [1, 2])
        blocks.close()
        for handle in handles:
            self.driver.call("cuMemRelease", handle)
        # All of the device is free again.
        self.driver.free(self.driver.allocate(88 << 20))

    def test_blocks_that_cannot_be_had_are_given_back(self):
        handles, fds = self.make(3)
        directory = Path(os.environ["ROLLWRIGHT_FAKE_CUDA"])
        calls = {"cuMemImportFromShareableHandle": 2, "cuMemAddressReserve": 0}
        for call, skip in calls.items():
            (directory / f"fail-{call}").write_text(f"2 {skip}")
            with self.assertRaisesRegex(OSError, "OUT_OF_MEMORY"):
                self.blocks([os.dup(fd) for fd in fds], BLOCK, BLOCK)
        blocks = self.blocks(fds, BLOCK, 3 * BLOCK)
        for call, skip in {"cuMemMap": 1, "cuMemSetAccess": 0}.items():
            (directory / f"fail-{call}").write_text(f"2 {skip}")
            with self.assertRaisesRegex(OSError, "OUT_OF_MEMORY"):
                blocks.map([0, 1, 2])
            blocks.map([2, 1, 0])
            blocks.unmap()
        for handle in handles:
            self.driver.call("cuMemRelease", handle)
        # The agent's are gone; what was imported is not free until it is given back.
        with self.assertRaisesRegex(OSError, "OUT_OF_MEMORY"):
            self.driver.allocate(88 << 20)
        blocks.close()
        self.driver.free(self.driver.allocate(88 << 20))


if __name__ == "__main__":
    unittest.main()
