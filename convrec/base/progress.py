"""Show the progress of long work: a bar on a terminal; elsewhere (nohup, SLURM, CI) a line every 30 seconds."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

SECONDS = 30.0  # between lines


class Progress(tqdm):
    """tqdm that prints lines if there is no terminal: progress, elapsed and remaining time, and rate.

    Work that ends before the first line prints none, otherwise the end is also printed.

    Args:
        args: tqdm's.
        file: where to print; None: stderr.
        note: called for each line, returns further information such as costs; if it is missing or returns "", the line
            has tqdm's postfix.
        options: tqdm's.
    """

    def __init__(
        self, *args: Any, file: TextIO | None = None, note: Callable[[], str] | None = None, **options: Any
    ) -> None:
        self.stream = file or sys.stderr
        self.note = note
        self.is_over = threading.Event()
        self.has_printed = False
        self.null_file = None if self.stream.isatty() else open(os.devnull, "w")  # noqa: SIM115
        if self.null_file:  # without smoothing, a line shows the mean rate
            options |= {"mininterval": 1.0, "smoothing": 0}
        super().__init__(*args, file=self.null_file or self.stream, **options)
        if self.null_file and not self.disable:
            threading.Thread(target=self._print_lines, daemon=True).start()

    def line(self) -> str:
        """Return the current line."""
        note = (self.note() if self.note else "") or self.postfix
        return self.format_meter(**self.format_dict | {"ncols": 0, "postfix": note or None}).strip()

    def _print_lines(self) -> None:
        while not self.is_over.wait(SECONDS):
            self._print()

    def _print(self) -> None:
        self.has_printed = True
        with contextlib.suppress(OSError, ValueError):  # the disk may be full, the stream closed
            print(self.line(), file=self.stream, flush=True)

    def close(self) -> None:
        """Stop the lines, and print the last one if there were any."""
        if not self.disable and not self.is_over.is_set():
            self.is_over.set()
            if self.has_printed and self.leave:
                self._print()
        super().close()
        if self.null_file:
            self.null_file.close()
