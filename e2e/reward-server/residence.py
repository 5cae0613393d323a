"""Whether the weights are where requests can use them, and the two ways to get them there
without an agent that keeps them."""

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
        self.placed = None

    def read(self):
        """The data section of the file."""
        buffer, view = self.arrays.host(self.layout.bytes)
        with self.layout.path.open("rb", buffering=0) as file:
            file.seek(self.layout.start)
            done = 0
            while done < len(view):
                some = file.readinto(view[done:])
                if not some:
                    raise EOFError(f"{self.layout.path} ends before its weights do")
                done += some
        return buffer

    def wake(self):
        if self.placed is None:
            host = self.host if self.host is not None else self.read()
            self.placed = self.arrays.place(host)
        self.residence.enter(self.placed[1])

    def sleep(self):
        self.residence.leave()
        placed, self.placed = self.placed, None
        if placed is not None:
            self.arrays.free(placed)
