"""Weights that the agent keeps: its blocks of memory, mapped one after the other at one
address of this process. The protocol is in docs/reward-services.md."""

import ctypes
import json
import os
import socket
import sys
import threading

READ, SHARED, PRIVATE, FIXED, ANONYMOUS = 1, 1, 2, 0x10, 0x20


class Arena(threading.Thread):
    """Listens for the agent, and does what it says to a `Residence`."""

    def __init__(self, path, residence, memories):
        super().__init__(daemon=True)
        self.residence, self.memories = residence, memories
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(1)

    def run(self):
        while True:
            connection, _ = self.listener.accept()
            with connection:
                self.serve(connection)

    def serve(self, connection):
        """Obeys one agent until it leaves. Without it nobody says whose the blocks are, so
        they are given back."""
        memory = None
        try:
            while line := read_line(connection):
                try:
                    message = json.loads(line)
                    if memory is None:
                        fds = receive(connection, message["blocks"])
                        memory = self.memories[message["kind"]](
                            fds, message["block_bytes"], message["bytes"]
                        )
                    else:
                        self.obey(memory, message)
                    answer = {"ok": True}
                except Exception as error:
                    answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                connection.sendall(json.dumps(answer).encode() + b"\n")
        except OSError as error:
            print(f"the agent is gone: {error}", file=sys.stderr)
        finally:
            self.residence.leave()
            if memory is not None:
                memory.close()

    def obey(self, memory, message):
        match message["op"]:
            case "attach":
                memory.map(message["blocks"])
            case "serve":
                self.residence.enter(memory.address)
            case "detach":
                self.residence.leave()
                memory.unmap()
            case other:
                raise ValueError(f"{other} is no operation: use attach, serve or detach")


def read_line(connection):
    """Byte by byte: what follows a line may carry descriptors."""
    line = b""
    while byte := connection.recv(1):
        if byte == b"\n":
            break
        line += byte
    return line


def receive(connection, count):
    """The descriptors of blocks."""
    fds = []
    while len(fds) < count:
        data, some, _, _ = socket.recv_fds(connection, 1, 253)
        if not data:
            raise ConnectionError("the agent left in the middle of its blocks")
        fds.extend(some)
    return fds


class Files:
    """Blocks that are files in memory: the fake."""

    def __init__(self, fds, block_bytes, size):
        self.fds, self.block_bytes = fds, block_bytes
        self.size = -(-size // block_bytes) * block_bytes
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = (
            [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        )
        self.address = self.mmap(None, self.size, 0, PRIVATE | ANONYMOUS, -1)

    def mmap(self, address, size, protection, flags, fd):
        mapped = self.libc.mmap(address, size, protection, flags, fd, 0)
        if mapped == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return mapped

    def map(self, blocks):
        for place, block in enumerate(blocks):
            at = self.address + place * self.block_bytes
            self.mmap(at, self.block_bytes, READ, SHARED | FIXED, self.fds[block])

    def unmap(self):
        self.mmap(self.address, self.size, 0, PRIVATE | ANONYMOUS | FIXED, -1)

    def close(self):
        """The files are gone with their last descriptor; the range stays, without memory."""
        self.unmap()
        for fd in self.fds:
            os.close(fd)
