"""Lines of a byte stream."""

from __future__ import annotations

from collections.abc import Iterator

from .faults import InfrastructureFault

_LONGEST = 256 << 20


class Lines:
    r"""Splits at `\n` alone.

    `str.splitlines`, and with it httpx, also splits at characters that JSON strings may hold,
    such as U+2028.
    """

    def __init__(self) -> None:
        """Holds what follows the last line's end."""
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this piece completes, without their ends."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            whole = bytes(self._rest) + line
            self._rest.clear()
            yield whole.removesuffix(b"\r")
        self._rest += rest
        if len(self._rest) > _LONGEST:
            raise InfrastructureFault("LineTooLong", f"a line is longer than {_LONGEST} bytes")
