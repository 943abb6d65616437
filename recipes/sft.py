"""SFT warm start: settings -> checks -> verl's SFT trainer. Run by run_sft.sh.

    python -m recipes.sft [hydra overrides]

One device of this machine trains in this process, several on Ray, and so do the nodes of RAY_ADDRESS.
"""

if __name__ == "__main__":  # before imports that take seconds
    from convrec.runs import supervisor

    supervisor.begin()

import sys

from recipes.launch import runner
from recipes.launch.recipe import RECIPES


def main(arguments: list[str] | None = None) -> int:
    return runner.run(RECIPES["sft"], sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
