"""The source distribution and the wheel of this tree, as a release has them."""

import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(folder: Path) -> tuple[Path, Path]:
    """(sdist, wheel) in `folder`: the first of what git has or would add, the second of the first. Asks no index."""
    tree, out = folder / "tree", folder / "dist"
    out.mkdir(parents=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():  # not one that was removed and not yet committed
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    _run("build_sdist", tree, out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    _run("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), out)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def _run(hook: str, tree: Path, out: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BUILD, hook, str(out)], cwd=tree, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
