"""What a run of judges needs beside what any RL run does."""

from omegaconf import DictConfig

from convrec.errors import UserError
from convrec.judges.orders import SEPARATE, pairs_of
from convrec.judges.schema import read_judge_table
from convrec.runs.folder import listed


def check_orders(config: DictConfig) -> None:
    """Check that the two orders of a pair can count together, where they are to.

    Raises:
        UserError: a batch has no room for both orders, the training data lack one, or prompts are drawn one by one.
    """
    orders = config.convrec.get("orders", SEPARATE)
    if orders == SEPARATE:
        return
    if config.data.train_batch_size % 2:
        raise UserError(f"TRAIN_BATCH_SIZE={config.data.train_batch_size}: even with convrec.orders={orders}")
    if config.algorithm.filter_groups.enable:
        raise UserError(
            f"algorithm.filter_groups.enable=true draws prompts one by one, which would part the two orders of a pair: "
            f"leave it false with convrec.orders={orders}"
        )
    files = listed(config.data.train_files)
    pairs_of([row for path in files for row in read_judge_table(path, "pairwise")], f"TRAIN_FILE={', '.join(files)}")
