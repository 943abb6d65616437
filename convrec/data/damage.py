"""Damaged rows that a command leaves out when it is told to: the option, the limit, what is printed, the report."""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.files import write_text

REPORT = "damaged.jsonl"
SHARE = 0.05  # --skip-damaged without a value
SHOWN = 20  # reasons


def add_skip_damaged(parser: argparse.ArgumentParser, what: str) -> None:
    """--skip-damaged [SHARE]: None where it is not given. `what` it does with damaged rows."""
    parser.add_argument(
        "--skip-damaged",
        type=_share,
        nargs="?",
        const=SHARE,
        metavar="SHARE",
        help=f"{what}, up to this share of the rows ({SHARE:g})",
    )


def _share(text: str) -> float:
    share = float(text)  # a ValueError becomes argparse's message
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a share from 0 to below 1, 0.05 say")
    return share


def check_share(where: str, counts: Mapping[str, int], rows: int, share: float) -> None:
    """Raises UserError when more than `share` of the rows is damaged; counts: reason -> rows."""
    damaged = sum(counts.values())
    if damaged > share * rows:
        raise UserError(
            "\n".join(
                [
                    f"{where}: {damaged:,} of {rows:,} rows are damaged, more than the share of {share:g} that may be "
                    "left out; fix them, or give a higher --skip-damaged:",
                    *counted(counts),
                ]
            )
        )


def counted(counts: Mapping[str, int]) -> list[str]:
    """A line for each reason, the most frequent first."""
    order = sorted(counts, key=lambda reason: -counts[reason])
    more = [f"{'':>8}  and {len(order) - SHOWN:,} more reasons"] if len(order) > SHOWN else []
    return [f"{counts[reason]:>8,}: {reason}" for reason in order[:SHOWN]] + more


def write_report(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """A JSON object a line."""
    write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))
