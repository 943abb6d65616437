"""GRPO training of a judge: settings -> checks -> Ray -> verl's trainer. Run by recipes/judge/run_*.sh.

python -m recipes.judge.train {pointwise|pairwise} [hydra overrides]
"""

import sys
from functools import partial

from convrec.judges.prompt import MODES
from recipes.launch import runner
from recipes.launch.ray_training import PARTS, train
from recipes.preflight import checks

SHOWN = {
    "pointwise": {"reward/score": "reward", "reward/exact_match": "exact", "reward/no_verdict": "no verdict"},
    "pairwise": {"reward/score": "accuracy", "reward/no_verdict": "no verdict", "reward/prefers_a": "A"},
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] not in MODES:
        print(f"usage: python -m recipes.judge.train {{{','.join(MODES)}}} [hydra overrides]", file=sys.stderr)
        return 2
    mode, *overrides = arguments
    title = f"GRPO of a {mode} judge"
    recipe = f"judge_{mode}"
    check, run = partial(checks.check_judge, mode=mode), partial(train, recipe=recipe)
    return runner.run(recipe, title, PARTS, overrides, check, run, SHOWN[mode])


if __name__ == "__main__":
    sys.exit(main())
