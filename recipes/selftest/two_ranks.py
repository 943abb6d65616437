"""Phase `two_ranks`: two data-parallel processes, each with half of a batch, make the update of one with it all.

python -m recipes.selftest.two_ranks FOLDER GPUS RANK is one of the two.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from convrec.files import read_json, write_json
from recipes.selftest.checks import CheckFailed, Place, Skipped, require_at_most

SECONDS = 170


def two_ranks(place: Place) -> dict[str, Any]:
    from recipes.selftest.engine import build_engine, make_batch, update

    if place.gpus == 1:
        raise Skipped("needs 2 GPUs, there is 1")
    place.model()
    folder = place.folder / "two_ranks"
    folder.mkdir()
    command = [sys.executable, "-m", "recipes.selftest.two_ranks", str(place.folder), str(place.gpus)]
    processes = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
    expected = update(build_engine(place), make_batch())  # meanwhile
    for process in processes:
        if status := process.wait(timeout=SECONDS):
            raise CheckFailed(f"one of the two processes ended with status {status}")
    found = [read_json(folder / f"{rank}.json") for rank in range(2)]
    bound = 0.02 if place.gpus else 1e-5
    figures: dict[str, Any] = {"one process": expected, "two processes": found}
    # the engine's gradient is the mean over processes of gradients that are multiplied by their number
    mean_loss = sum(each["loss"] for each in found) / 2
    require_at_most("loss, difference", abs(mean_loss - expected["loss"]), bound)
    for each in found:
        require_at_most("gradient norm, relative difference", abs(each["grad_norm"] / expected["grad_norm"] - 1), bound)
    return figures


def main(folder: str, gpus: str, rank: str) -> NoReturn:
    from recipes.selftest.engine import build_engine, join_group, make_batch, parameters, update

    place, number = Place(Path(folder), int(gpus)), int(rank)
    join_group(place, number, 2, Path(folder) / "two_ranks" / "meeting")
    engine = build_engine(place)
    batch = make_batch(rows=range(number, 12, 2))
    result = update(engine, batch)
    total = sum(float(value.double().sum()) for value in parameters(engine).values())
    write_json(Path(folder) / "two_ranks" / f"{rank}.json", result | {"sum of weights": total})
    os._exit(0)  # threads of the process group hold up the interpreter's shutdown


if __name__ == "__main__":
    main(*sys.argv[1:])
