"""What the manifest of a checkpoint costs: files that are brought to the disk, with and without checksums. JSON.

    python benchmarks/bench_checkpoint.py --mib 256 --turns 15

A model's and its AdamW's state of so many MiB in all, written by torch.save as verl does, then (a) every file and
folder brought to the disk by fsync, (b) `convrec.checkpoints.manifest.write`, which does that and computes checksums.
The two take turns, and change places every time; the disk is quiet before each (sync).

    seconds         {"saved": torch.save, "fsync": (a), "manifest": (b)}: medians
    wall_ratio      quartiles over the turns of saving with (b) over saving with (a)
    cpu_ratio       of the CPU seconds of the process, which another's writing on a shared disk does not change
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from convrec.checkpoints import manifest

BYTES = 3 * 4  # of a parameter: itself and AdamW's two moments, fp32
LAYERS = 8


def bring_to_disk(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in (*files, folder, folder.parent):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def save(folder: Path, state: dict[str, torch.Tensor], then: Callable[[Path], None]) -> tuple[float, float, float]:
    """(seconds, CPU seconds of all, seconds of torch.save)."""
    folder.mkdir()
    os.sync()
    begin, cpu = time.perf_counter(), time.process_time()
    torch.save(state, folder / "model_world_size_1_rank_0.pt")
    torch.save(
        [state, {name: tensor.clone() for name, tensor in state.items()}], folder / "optim_world_size_1_rank_0.pt"
    )
    saved = time.perf_counter()
    then(folder)
    return time.perf_counter() - begin, time.process_time() - cpu, saved - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="of the checkpoint")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured (the temporary one)")
    options = parser.parse_args()
    count = options.mib * 2**20 // BYTES // LAYERS
    state = {f"layers.{layer}.weight": torch.randn(count) for layer in range(LAYERS)}
    seconds: dict[str, list[float]] = {"fsync": [], "manifest": [], "saved": []}
    cpu: dict[str, list[float]] = {"fsync": [], "manifest": []}
    ways = {"fsync": bring_to_disk, "manifest": manifest.write}
    with tempfile.TemporaryDirectory(prefix="convrec-bench-", dir=options.folder) as root:
        for turn in range(-1, options.turns):  # the first warms up
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                folder = Path(root, f"{turn}-{name}")
                wall, used, saved = save(folder, state, ways[name])
                size = sum(path.stat().st_size for path in folder.iterdir())
                for path in folder.iterdir():
                    path.unlink()
                if turn >= 0:
                    seconds[name].append(wall)
                    seconds["saved"].append(saved)
                    cpu[name].append(used)

    def ratios(of: dict[str, list[float]]) -> list[float]:
        cuts = statistics.quantiles([b / a for a, b in zip(of["fsync"], of["manifest"], strict=True)])
        return [round(cut, 3) for cut in cuts]

    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    result = {"mib": round(size / 2**20), "turns": options.turns, "seconds": medians}
    print_report({**result, "wall_ratio": ratios(seconds), "cpu_ratio": ratios(cpu)})


if __name__ == "__main__":
    main()
