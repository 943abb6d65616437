"""Checks of judge runs, in addition to those of every RL run."""

from convrec.base.errors import UserError
from convrec.judges.orders import SEPARATE, pair_swapped_rows
from convrec.judges.schema import read_judge_table
from convrec.runs.folder import listed
from convrec.settings.judges import JudgeConfig, PairwiseJudgeConfig
from convrec.settings.run import Run


def check_orders(run: Run[JudgeConfig]) -> None:
    """Check that the two orders of a pair can be rewarded together, if the settings ask for it.

    Raises:
        UserError: the batch size is odd, the training data lack an order, or prompts are sampled one by one.
    """
    settings = run.settings
    if not isinstance(settings, PairwiseJudgeConfig) or settings.orders == SEPARATE:
        return
    if settings.train_batch_size % 2:
        raise UserError(
            "judges.odd-batch",
            f"TRAIN_BATCH_SIZE={settings.train_batch_size}: must be even with convrec.orders={settings.orders}.",
        )
    if run.group_filter is not None:
        raise UserError(
            "judges.group-filter",
            "algorithm.filter_groups.enable=true samples prompts one by one, which would separate the two orders of a "
            f"pair. Set it to false with convrec.orders={settings.orders}.",
        )
    files = listed(settings.train_file)
    pair_swapped_rows(
        [row for path in files for row in read_judge_table(path, "pairwise")], f"TRAIN_FILE={', '.join(files)}"
    )
