"""What a run of judges needs beside what any RL run does."""

from convrec.base.errors import UserError
from convrec.judges.orders import SEPARATE, pair_swapped_rows
from convrec.judges.schema import read_judge_table
from convrec.runs.folder import listed
from convrec.settings.judges import JudgeConfig, PairwiseJudgeConfig
from convrec.settings.run import Run


def check_orders(run: Run[JudgeConfig]) -> None:
    """Check that the two orders of a pair can count together, where they are to.

    Raises:
        UserError: a batch has no room for both orders, the training data lack one, or prompts are drawn one by one.
    """
    settings = run.settings
    if not isinstance(settings, PairwiseJudgeConfig) or settings.orders == SEPARATE:
        return
    if settings.train_batch_size % 2:
        raise UserError(f"TRAIN_BATCH_SIZE={settings.train_batch_size}: even with convrec.orders={settings.orders}")
    if run.group_filter is not None:
        raise UserError(
            "algorithm.filter_groups.enable=true draws prompts one by one, which would part the two orders of a pair: "
            f"leave it false with convrec.orders={settings.orders}"
        )
    files = listed(settings.train_file)
    pair_swapped_rows(
        [row for path in files for row in read_judge_table(path, "pairwise")], f"TRAIN_FILE={', '.join(files)}"
    )
