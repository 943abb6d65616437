"""Python environments that a test does not run in: with other versions of packages, or without some of them.

Only what Python itself answers is replaced, so a test also fails if the product asks for another package.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest


def install_versions(
    patch: pytest.MonkeyPatch,
    folder: Path,
    versions: Mapping[str, str | None],
    requirements: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Set what `importlib.metadata` says of these packages; all others stay as they are.

    Args:
        patch: undoes it.
        folder: an existing folder, which gets the packages' metadata.
        versions: package -> version; None: it is not installed.
        requirements: package -> its requirements; none for packages that are missing here.
    """
    find_installed = metadata.Distribution.from_name
    for name, version in versions.items():
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in (requirements or {}).get(name, ())]
        (folder / f"{name}.dist-info").mkdir()
        (folder / f"{name}.dist-info" / "METADATA").write_text("\n".join(lines) + "\n")

    def find(name: str) -> metadata.Distribution:
        if name not in versions:
            return find_installed(name)
        if versions[name] is None:
            raise metadata.PackageNotFoundError(name)
        return metadata.PathDistribution(folder / f"{name}.dist-info")

    patch.setattr(metadata.Distribution, "from_name", find)


def hide_package(patch: pytest.MonkeyPatch, name: str) -> None:
    """Have this package not installed: it cannot be imported, and `find_spec` does not find it."""
    patch.setitem(sys.modules, name, None)  # type: ignore[arg-type]


def install_empty_package(patch: pytest.MonkeyPatch, name: str) -> None:
    """Have a package of this name installed, with nothing in it."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    patch.setitem(sys.modules, name, module)
