"""SFT warm start: settings -> checks -> verl's SFT trainer. Run by run_sft.sh.

    python -m recipes.sft [hydra overrides]

One device trains in this process, several through torchrun. On several nodes set N_NODES and start torchrun yourself on
each of them; without a terminal's comforts, and from the checkpoint that the tracker names.
"""

import os

if __name__ == "__main__" and "LOCAL_RANK" not in os.environ:  # before imports that take seconds
    from convrec.runs import supervisor

    supervisor.begin()

import contextlib
import sys
from pathlib import Path

from convrec.checkpoints import saving
from convrec.errors import UserError
from convrec.runs import guard
from convrec.runs.folder import hold, next_metrics_file
from recipes.launch import runner, sft_training
from recipes.launch.environment import process_environment
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.settings import compose


def _train_as_torchrun_process(recipe: Recipe, arguments: list[str]) -> int:
    is_first = os.environ["RANK"] == "0"
    by_user = guard.FOLDER_VARIABLE not in os.environ  # else `runner` has started torchrun, and holds the run folder
    try:
        config = compose(recipe.name, arguments)
        recipe.check(config)
        os.environ.update(process_environment(config.trainer.device != "cpu"))
        run_folder = Path(config.trainer.default_local_dir)
        warnings = saving.check_world_size(run_folder, int(os.environ["WORLD_SIZE"]))
        if is_first and by_user:
            sys.stderr.writelines(f"warning: {warning}\n" for warning in warnings)
        with hold(run_folder) if is_first and by_user else contextlib.nullcontext():
            if is_first:
                os.environ.setdefault("VERL_FILE_LOGGER_PATH", str(next_metrics_file(run_folder)))
            sft_training.train(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def main(arguments: list[str] | None = None) -> int:
    recipe, arguments = RECIPES["sft"], sys.argv[1:] if arguments is None else arguments
    if "LOCAL_RANK" in os.environ:
        return _train_as_torchrun_process(recipe, arguments)
    return runner.run(recipe, arguments)


if __name__ == "__main__":
    sys.exit(main())
