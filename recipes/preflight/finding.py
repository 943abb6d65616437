"""The result of one check by the doctor or a recipe, and how a recipe stops on failures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from convrec.base.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: its subject, for example "disk".
        status: a recipe stops on a failure and prints a warning.
        where: the node or the setting.
        what: the observation, in one line.
        fix: the remedy; "" if the status is ok.
    """

    check: str
    status: Literal["ok", "warning", "failure"]
    where: str
    what: str
    fix: str = ""


def stop_on_failure(findings: Sequence[Finding]) -> list[str]:
    """Return the warnings, one line each.

    Raises:
        UserError: there are failures; the message has one line for each.
    """
    failures = [f"{f.where}: {f.what}. Fix: {f.fix}" for f in findings if f.status == "failure"]
    if failures:
        raise UserError("preflight.failed-check", "\n       ".join(failures))
    return [f"{f.where}: {f.what} ({f.fix})" for f in findings if f.status == "warning"]
