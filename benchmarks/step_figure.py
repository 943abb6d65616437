"""Draw what profile_step.py has measured: a row per process, the step from left to right.

python benchmarks/step_figure.py FILE.json FILE.svg [NOTE]

NOTE ends the line below the picture, for example "beside other work".
"""

import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from convrec.base.files import atomic_write
from convrec.report.drawing import LINES, STYLE

TEXT = "#1c2430"
QUIET = "#5a6675"
IDLE = "#eef1f5"
OTHERS = "#b9c1cc"
COLOURS = {
    "generation, reward": LINES[0],
    "old log-probs": LINES[3],
    "reference": LINES[3],
    "credit": LINES[4],
    "update": LINES[1],
    "weights": LINES[2],
    "driver": QUIET,
}
GAP = 0.28  # between two rows, in rows
WIDE = 0.12  # a band with a smaller share of the step has its label above those of the others
SMALL = 0.01  # a band with a smaller share of the step has no label
# On a dark page colours are inverted as those of a report are (convrec/report/page.css).
DARK = (
    "<style>@media (prefers-color-scheme: dark) "
    "{ svg { filter: invert(.88) hue-rotate(180deg) brightness(1.2); } }</style>"
)


def draw(report_file: Path, picture: Path, note: str = "") -> None:
    """Draw the picture as SVG.

    Args:
        report_file: what profile_step.py has written.
        picture: the file to write; it appears only when complete.
        note: ends the line below the picture.
    """
    report = json.loads(report_file.read_text(encoding="utf-8"))
    step = report["step"]
    rows = step["processes"]
    with matplotlib.style.context(STYLE):
        figure = Figure(figsize=(9.2, 1.9 + 0.42 * (len(rows) + 1)), layout="constrained")
        axis = figure.subplots()
        for patch in (figure.patch, axis.patch):
            patch.set_visible(False)  # the page's own background
        cores = report["machine"]["cores"]
        for place, row in enumerate(rows):
            draw_process(axis, place * (1 + GAP), row, step, cores)
        bottom = len(rows) * (1 + GAP) + 0.25
        draw_machine(axis, bottom, rows, step, cores)
        bottom += 1 + GAP
        draw_bands(axis, step, bottom)
        style_axis(axis, step, bottom + 0.5)
        axis.set_xlabel(describe(report, note), loc="left")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    begin, end = text.getvalue().split("<defs>", maxsplit=1)
    with atomic_write(picture) as partial:
        partial.write_text(f"{begin}{DARK}\n <defs>{end}", encoding="utf-8")


def describe(report: Mapping[str, Any], note: str) -> str:
    """Return what the picture shows, in two lines."""
    step = report["step"]
    machine = report["machine"]
    sizes = f"{report['model']}, {report['batch']} prompts x {report['rollouts']} responses, {machine['processor']}"
    return (
        f"Seconds of a step, mean of {step['steps']} steps. A full row is {machine['cores']} busy cores; pale is idle. "
        f"Right: CPU seconds of a step.\n{sizes}" + (f", {note}" if note else "")
    )


def draw_process(axis: Axes, top: float, row: Mapping[str, Any], step: Mapping[str, Any], cores: int) -> None:
    """Draw how busy a process is: the height of its row is all cores, and the part without colour is idle.

    Args:
        axis: where y grows downwards, a row has the height 1.
        top: upper end of the row.
        row: the process.
        step: the typical step.
        cores: number of cores of the machine.
    """
    end = step["phases"][-1]["end"]
    draw_area(axis, top, step, np.array(row["busy_cores"]) / cores)
    count = f" ({row['processes']})" if row["processes"] > 1 else ""
    axis.text(-0.01 * end, top + 0.5, f"{row['name']}{count}", ha="right", va="center", color=TEXT)
    axis.text(1.01 * end, top + 0.5, f"{row['cpu_seconds']:.2f} s", ha="left", va="center", color=QUIET)


def draw_area(axis: Axes, top: float, step: Mapping[str, Any], shares: np.ndarray, colour: str = "") -> None:
    """Draw an area on the bottom of a row.

    Args:
        axis: where y grows downwards, a row has the height 1.
        top: upper end of the row.
        step: the typical step.
        shares: height in each bin, cut off at 1.
        colour: "" for that of each band.
    """
    edges_E = np.array(step["edges"])
    bottom = top + 1
    axis.fill_between([0, edges_E[-1]], bottom, top, color=IDLE, lw=0, zorder=1)
    for band in step["phases"]:
        first, last = np.searchsorted(edges_E, [band["begin"], band["end"]])
        if first == last:  # a band shorter than the report's digits
            continue
        axis.stairs(
            bottom - np.minimum(shares[first:last], 1),
            edges_E[first : last + 1],
            baseline=bottom,
            fill=True,
            color=colour or COLOURS[band["name"]],
            lw=0,
            zorder=2,
        )


def draw_machine(
    axis: Axes, top: float, rows: Sequence[Mapping[str, Any]], step: Mapping[str, Any], cores: int
) -> None:
    """Draw all processes of the run in one row, below other programs in grey, and write how much is idle.

    Args:
        axis: as in `draw_process`.
        top: also.
        rows: the processes.
        step: the typical step.
        cores: number of cores of the machine.
    """
    end = step["edges"][-1]
    lengths = np.diff(step["edges"])
    run = np.sum([row["busy_cores"] for row in rows], axis=0) / cores
    # Ticks are coarser than a bin, so the machine may seem less busy than the run.
    machine = np.maximum(np.array(step["machine_busy_cores"]) / cores, run)
    draw_area(axis, top, step, machine, OTHERS)
    draw_area(axis, top, step, run)
    seconds = float(run @ lengths) * cores
    shares = {"this run": run, "other programs": machine - run, "idle": 1 - np.minimum(machine, 1)}
    words = ", ".join(f"{name} {float(share @ lengths) / end:.0%}" for name, share in shares.items())
    axis.text(-0.01 * end, top + 0.5, "all cores", ha="right", va="center", color=TEXT, fontweight="bold")
    axis.text(1.01 * end, top + 0.5, f"{seconds:.2f} s", ha="left", va="center", color=QUIET)
    axis.text(0, top + 1.12, words, ha="left", va="top", color=QUIET)


def draw_bands(axis: Axes, step: Mapping[str, Any], bottom: float) -> None:
    """Draw a bar with a label above the rows for each phase, and a line down to the bottom where it begins."""
    end = step["edges"][-1]
    for band in step["phases"]:
        seconds = band["end"] - band["begin"]
        colour = COLOURS[band["name"]]
        axis.fill_between([band["begin"], band["end"]], -0.28, -0.12, color=colour, lw=0)
        axis.vlines(band["begin"], -0.28, bottom, color="white", lw=0.8, zorder=3)
        if seconds > SMALL * end:
            level = -0.38 if seconds > WIDE * end else -1.4
            label = f"{band['name']}\n{seconds:.2f} s"
            axis.text((band["begin"] + band["end"]) / 2, level, label, ha="center", va="bottom", color=colour)


def style_axis(axis: Axes, step: Mapping[str, Any], bottom: float) -> None:
    """Show the time from left to right, and nothing but the rows from top to bottom."""
    axis.set_xlim(0, step["edges"][-1])
    axis.set_ylim(bottom, -2.4)
    axis.set_yticks([])
    axis.grid(visible=False)


def main() -> None:
    report_file, picture, *note = sys.argv[1:]
    draw(Path(report_file), Path(picture), *note)


if __name__ == "__main__":
    main()
