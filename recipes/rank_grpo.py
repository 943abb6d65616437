"""Rank-GRPO training: settings -> checks -> Ray -> verl's trainer. Run by run_rank_grpo.sh.

python -m recipes.rank_grpo [hydra overrides]
"""

import sys

from recipes.launch import runner
from recipes.launch.ray_training import PARTS, train
from recipes.preflight import checks

SHOWN = {
    "val/ndcg": "val NDCG",
    "rank_grpo/return@1": "return@1",
    "rank_grpo/dcg": "DCG",
    "actor/kl_loss": "KL",  # of GRPO and GSPO, by verl; ours, which comes with `actor/kl`, is times the coefficient
    "actor/kl": "KL",
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    return runner.run("rank_grpo", "Rank-GRPO", PARTS, arguments, checks.check_rank_grpo, train, SHOWN)


if __name__ == "__main__":
    sys.exit(main())
