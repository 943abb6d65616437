"""Checks of a judge's settings and data, before anything expensive starts."""

from convrec.judges.checks import check_orders
from convrec.judges.schema import validate_judge_table
from convrec.settings.judges import JudgeConfig, PairwiseJudgeConfig
from convrec.settings.run import Run
from recipes.planning import memory
from recipes.preflight import precision, pretrained
from recipes.preflight.checks import check_rl, check_tables, require_files


def check_judge(run: Run[JudgeConfig]) -> list[str]:
    """Check the settings and data of a judge's run; see `checks.check_rank_grpo`."""
    settings = run.settings
    mode = "pairwise" if isinstance(settings, PairwiseJudgeConfig) else "pointwise"
    check_rl(run)
    require_files(settings)
    warnings = check_tables(run, lambda path: validate_judge_table(path, mode))
    check_orders(run)
    warnings += pretrained.prepare(run, lists=False)
    precision.set_precision(run)
    return [*warnings, *memory.fit_micro_batch(run)]
