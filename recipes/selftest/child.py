"""A process of `runner`: calls one phase after another, and writes FOLDER/results/PHASE.json after each.

python -m recipes.selftest.child FOLDER GPUS NAME=MODULE:FUNCTION ...
"""

import importlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from convrec.errors import one_line
from convrec.files import write_json
from recipes.selftest.checks import Place, Skipped


def main(folder: str, gpus: str, *phases: str) -> NoReturn:
    place = Place(Path(folder), int(gpus))
    for phase in phases:
        name, _, target = phase.partition("=")
        module, _, function = target.partition(":")
        print(f"== {name}", file=sys.stderr, flush=True)
        try:
            call = getattr(importlib.import_module(module), function)
            start = time.perf_counter()
            figures = call(place)
            result = {"status": "pass", "reason": "", "figures": figures, "seconds": time.perf_counter() - start}
        except Skipped as skipped:
            result = {"status": "skipped", "reason": str(skipped)}
        except Exception as error:
            traceback.print_exc()
            result = {"status": "fail", "reason": one_line(error)}
        write_json(place.folder / "results" / f"{name}.json", result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # vLLM's and torch's threads would hold up the interpreter's shutdown


if __name__ == "__main__":
    main(*sys.argv[1:])
