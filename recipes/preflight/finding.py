"""One thing that the doctor and the recipes have found out, and what follows from a failure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from convrec.base.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """Something looked at. `where` is a node or a setting; `fix` says what to do, empty when all is well."""

    check: str
    status: Literal["ok", "warning", "failure"]
    where: str
    what: str
    fix: str = ""


def stop_on_failure(findings: Sequence[Finding]) -> list[str]:
    """Raise UserError with every failure; return the warnings as text. For the recipes."""
    failures = [f"{f.where}: {f.what}. Fix: {f.fix}" for f in findings if f.status == "failure"]
    if failures:
        raise UserError("\n       ".join(failures))
    return [f"{f.where}: {f.what} ({f.fix})" for f in findings if f.status == "warning"]
