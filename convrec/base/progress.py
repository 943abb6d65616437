"""Progress of long work: a bar on a terminal; elsewhere (nohup, SLURM, CI) a line every half minute."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

SECONDS = 30.0  # between lines


class Progress(tqdm):
    """tqdm, with lines where its bar cannot be drawn: how far, since when, how long still, at what rate.

    Work that ends earlier prints none; where there were some, the end is one. `note` is asked for each line what else
    there is to say (costs, what is waited for); without it, or where it is "", a line has the bar's postfix.
    """

    def __init__(
        self, *args: Any, file: TextIO | None = None, note: Callable[[], str] | None = None, **options: Any
    ) -> None:
        self.stream = file or sys.stderr
        self.note = note
        self.is_over = threading.Event()
        self.has_told = False
        self.nowhere = None if self.stream.isatty() else open(os.devnull, "w")  # noqa: SIM115
        if self.nowhere:  # mean rate: of minutes, a line is no bar
            options |= {"mininterval": 1.0, "smoothing": 0}
        super().__init__(*args, file=self.nowhere or self.stream, **options)
        if self.nowhere and not self.disable:
            threading.Thread(target=self._tell, daemon=True).start()

    def line(self) -> str:
        """What there is to say now."""
        note = (self.note() if self.note else "") or self.postfix
        return self.format_meter(**self.format_dict | {"ncols": 0, "postfix": note or None}).strip()

    def _tell(self) -> None:
        while not self.is_over.wait(SECONDS):
            self._print()

    def _print(self) -> None:
        self.has_told = True
        with contextlib.suppress(OSError, ValueError):  # the disk may be full, the stream closed
            print(self.line(), file=self.stream, flush=True)

    def close(self) -> None:
        if not self.disable and not self.is_over.is_set():
            self.is_over.set()
            if self.has_told and self.leave:
                self._print()
        super().close()
        if self.nowhere:
            self.nowhere.close()
