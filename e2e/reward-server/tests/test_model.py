"""The model and its file, and the arena's protocol against an agent of a few lines."""

import array
import ctypes
import itertools
import json
import os
import socket
import struct
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import arena
import arrays
import weights
from model import RewardModel
from residence import Asleep, Own, Residence

SIZE = 300_000


def make(directory, seed=0):
    weights.make(Path(directory) / "model.safetensors", SIZE, seed)
    return weights.read_layout(directory)


class File(unittest.TestCase):
    def test_size_and_header(self):
        with tempfile.TemporaryDirectory() as directory:
            layout = make(directory)
            self.assertLess(abs(layout.bytes - SIZE), SIZE / 3)
            data = layout.path.read_bytes()
            (length,) = struct.unpack("<Q", data[:8])
            header = json.loads(data[8 : 8 + length])
            header.pop("__metadata__")
            ends = sorted(t["data_offsets"] for t in header.values())
            self.assertEqual(ends[0][0], 0)
            self.assertEqual(ends[-1][1], layout.bytes)
            for (_, end), (start, _) in itertools.pairwise(ends):
                self.assertEqual(end, start)

    def test_large_shapes_come_close(self):
        for size in (4_000_000_000, 14_000_000_000):
            self.assertLess(abs(weights.shape_of(size).bytes / size - 1), 0.06)


class Answers(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.layout = make(self.directory.name)
        self.library = arrays.Numpy()
        self.residence = Residence(RewardModel(self.library, self.layout))
        self.addCleanup(self.directory.cleanup)

    def test_same_answer_each_time_and_other_text_other_answer(self):
        own = Own(self.residence, self.layout, self.library, keeps=False)
        seen = []
        for text in (b"good", b"good", b"bad"):
            own.wake()
            with self.residence.use() as model:
                seen.append(model.reward(text))
            own.sleep()
        self.assertEqual(seen[0], seen[1])
        self.assertNotEqual(seen[0], seen[2])
        with self.assertRaises(Asleep), self.residence.use():
            pass

    def test_log_probs_are_of_the_given_tokens_alone(self):
        own = Own(self.residence, self.layout, self.library, keeps=True)
        own.wake()
        with self.residence.use() as model:
            whole, part = model.log_probs(b"a text"), model.log_probs(b"a te")
        self.assertEqual(len(whole), 5)
        self.assertTrue(all(value < 0 for value in whole))
        # A token's own does not depend on what follows it.
        for one, other in zip(whole, part, strict=False):
            self.assertAlmostEqual(one, other, places=4)

    def test_the_arena_serves_from_the_agents_blocks(self):
        own = Own(self.residence, self.layout, self.library, keeps=True)
        own.wake()
        with self.residence.use() as model:
            expected = model.reward(b"text")
        own.sleep()
        block = 65536
        data = self.layout.path.read_bytes()[self.layout.start :]
        count = -(-len(data) // block)
        fds = [os.memfd_create("block") for _ in range(count + 2)]
        path = os.path.join(self.directory.name, "sock")
        arena.Arena(path, self.residence, {"memfd": arena.Files}).start()
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(path)
            answers = agent.makefile("r")

            def say(message):
                agent.sendall(json.dumps(message).encode() + b"\n")

            say({"kind": "memfd", "blocks": len(fds), "block_bytes": block, "bytes": len(data)})
            rights = array.array("i", fds)
            agent.sendmsg([b"F"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            self.assertEqual(json.loads(answers.readline()), {"ok": True})
            # Any blocks in any order: each time others.
            for places in (list(range(count)), list(range(count + 1, 1, -1))):
                for place, start in zip(places, range(0, len(data), block), strict=True):
                    os.ftruncate(fds[place], block)
                    os.pwrite(fds[place], data[start : start + block], 0)
                for message in ({"op": "attach", "blocks": places}, {"op": "serve"}):
                    say(message)
                    self.assertEqual(json.loads(answers.readline()), {"ok": True})
                with self.residence.use() as model:
                    self.assertEqual(model.reward(b"text"), expected)
                say({"op": "detach"})
                self.assertEqual(json.loads(answers.readline()), {"ok": True})
                self.assertFalse(self.residence.awake)
            say({"op": "fly"})
            self.assertIn("fly", json.loads(answers.readline())["error"])
            answers.close()


class Views(unittest.TestCase):
    def test_a_view_is_the_memory_itself(self):
        buffer = (ctypes.c_uint16 * 6)(*[0x3C00] * 6)
        view = arrays.Numpy().view(ctypes.addressof(buffer), (2, 3))
        self.assertEqual(float(view.sum()), 6.0)
        buffer[0] = 0
        self.assertEqual(float(view.sum()), 5.0)


if __name__ == "__main__":
    unittest.main()
