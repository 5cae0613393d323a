"""Whether the weights are where requests can use them, and the two ways to get them there
without an agent that keeps them."""

import ctypes
import threading
from contextlib import contextmanager


class Asleep(Exception):
    """A request of a server that sleeps."""


class Residence:
    """One forward pass at a time; nobody leaves in the middle of one."""

    def __init__(self, model):
        self.model, self.lock, self.awake = model, threading.Lock(), False

    def enter(self, address):
        with self.lock:
            self.model.bind(address)
            self.awake = True

    def leave(self):
        with self.lock:
            self.model.release()
            self.awake = False

    @contextmanager
    def use(self):
        with self.lock:
            if not self.awake:
                raise Asleep
            yield self.model


class Own:
    """Weights that this process keeps itself: in its memory while it sleeps, or, when it
    keeps nothing, in the file alone."""

    def __init__(self, residence, layout, arrays, keeps):
        self.residence, self.layout, self.arrays = residence, layout, arrays
        self.host = self.read() if keeps else None
        self.used = None

    def read(self):
        """The data section of the file. Locked where a GPU copies from it."""
        if self.arrays.device == "cuda":
            import torch

            buffer = torch.empty(self.layout.bytes, dtype=torch.uint8, pin_memory=True)
            view = memoryview(buffer.numpy())
        else:
            buffer = (ctypes.c_char * self.layout.bytes)()
            view = memoryview(buffer).cast("B")
        with self.layout.path.open("rb", buffering=0) as file:
            file.seek(self.layout.start)
            done = 0
            while done < len(view):
                done += file.readinto(view[done:])
        return buffer

    def wake(self):
        host = self.host if self.host is not None else self.read()
        if self.arrays.device == "cuda":
            self.used = host.to("cuda")
            self.arrays.sync()
            self.residence.enter(self.used.data_ptr())
        else:
            self.used = host
            self.residence.enter(ctypes.addressof(host))

    def sleep(self):
        self.residence.leave()
        self.used = None
        if self.arrays.device == "cuda":
            import torch

            torch.cuda.empty_cache()
