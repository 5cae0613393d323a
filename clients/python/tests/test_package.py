"""The wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_holds_the_package_and_needs_no_agent(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(
        [*build, "--directory", tmp_path / "dist"], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = (tmp_path / "dist").glob("rollwright-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    package = tmp_path / "installed" / "rollwright"
    made = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    source = ROOT / "src" / "rollwright"
    written = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert made == written
    assert Path("py.typed") in made
    # Importing it loads nothing of the agent.
    program = "import sys, rollwright; sys.exit('minisweagent' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "installed", check=True)
