"""GRPO training of a judge: settings -> checks -> Ray -> verl's trainer. Run by recipes/judge/run_*.sh.

python -m recipes.judge.train {pointwise|pairwise} [hydra overrides]
"""

if __name__ == "__main__":  # before imports that take seconds
    from convrec.runs import supervisor

    supervisor.begin()

import sys

from recipes.launch import runner
from recipes.launch.recipe import RECIPES

MODULE = "recipes.judge.train"


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    judges = {recipe.command[1]: recipe for recipe in RECIPES.values() if recipe.command[0] == MODULE}
    if not arguments or arguments[0] not in judges:
        print(f"usage: python -m {MODULE} {{{','.join(judges)}}} [hydra overrides]", file=sys.stderr)
        return 2
    mode, *overrides = arguments
    return runner.run(judges[mode], overrides)


if __name__ == "__main__":
    sys.exit(main())
