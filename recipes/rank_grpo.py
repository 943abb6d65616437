"""Rank-GRPO training: settings -> checks -> Ray -> verl's trainer. Run by run_rank_grpo.sh.

python -m recipes.rank_grpo [hydra overrides]
"""

if __name__ == "__main__":  # before imports that take seconds
    from convrec.runs import supervisor

    supervisor.begin()

import sys

from recipes.launch import runner
from recipes.launch.recipe import RECIPES


def main(arguments: list[str] | None = None) -> int:
    return runner.run(RECIPES["rank_grpo"], sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
