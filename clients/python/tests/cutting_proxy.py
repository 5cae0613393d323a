"""A proxy on a Unix socket that cuts the first connections short."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class CuttingProxy:
    """Passes bytes on; each of the first `cuts` answers is cut after its first piece."""

    def __init__(self, path: Path, target: str, cuts: int) -> None:
        """Listens at `path` and passes on to the socket `target`."""
        self.address = f"unix:{path}"
        self.connections = 0
        self._target = target
        self._cuts = cuts
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def __enter__(self) -> CuttingProxy:
        """Begins."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Accepts no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def sever(self) -> None:
        """Cuts what is open now."""
        while self._open:
            _shut(self._open.pop())

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._open.append(caller)
            cut = self.connections <= self._cuts
            for source, sink, once in ((caller, server, False), (server, caller, cut)):
                threading.Thread(target=_pass, args=(source, sink, once), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, once: bool) -> None:
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
            if once:
                break
    except OSError:
        pass
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
