"""Makes `rollwright._sync` from `rollwright._async`; with --check only compares."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "rollwright"
BY_HAND = {"__init__.py", "runtime.py"}
RULES = [
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\ba(close|closing|read|iter_bytes)\b", r"\1"),
]


def tidy(source: str, name: str) -> str:
    """Sorts the imports and breaks the lines as if it had been written so."""
    path = str(PACKAGE / "_sync" / name)
    for step in (["check", "--fix", "--quiet", "--select", "I"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *step, "--stdin-filename", path, "-"]
        source = subprocess.run(  # noqa: S603
            command, input=source, text=True, capture_output=True, check=True
        ).stdout
    return source


def main() -> int:
    """Returns 1 when a file differs and is only checked."""
    check, differs = "--check" in sys.argv[1:], False
    for path in sorted((PACKAGE / "_async").glob("*.py")):
        if path.name in BY_HAND:
            continue
        source = path.read_text()
        for pattern, replacement in RULES:
            source = re.sub(pattern, replacement, source)
        source = f"# Made by scripts/unasync.py from _async/{path.name}: change that one.\n{source}"
        source = tidy(source, path.name)
        target = PACKAGE / "_sync" / path.name
        if target.exists() and target.read_text() == source:
            continue
        differs = True
        if check:
            print(f"{target} is old: run scripts/unasync.py", file=sys.stderr)
        else:
            target.write_text(source)
    return int(check and differs)


if __name__ == "__main__":
    sys.exit(main())
