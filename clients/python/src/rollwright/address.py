"""Where a server is."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit


@dataclass(frozen=True)
class Address:
    """`unix:/path`, or an `http://` or `https://` URL."""

    url: str
    """Base URL; the host is a placeholder where `socket` is set."""
    socket: str | None = None
    """Path of a Unix socket."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address; raises `ValueError` on any other form."""
        if text.startswith("unix:/"):
            return cls("http://localhost", text.removeprefix("unix:"))
        if (parts := urlsplit(text)).scheme in ("http", "https") and parts.hostname:
            return cls(text.rstrip("/"))
        raise ValueError(f"address {text!r} must be `unix:/path`, `http://...` or `https://...`")


def segment(text: str) -> str:
    """An id as one segment of a path: ids may hold `/`."""
    # A segment of dots alone would be taken for a step in the path.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
