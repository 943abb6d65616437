"""What the recipes of judges check before anything expensive starts."""

from convrec.errors import UserError
from convrec.judges.orders import SEPARATE, pairs_of
from convrec.judges.schema import read_judge_table, validate_judge_table
from convrec.runs.folder import listed
from convrec.settings.judges import JudgeConfig, PairwiseJudgeConfig
from convrec.settings.run import Run
from recipes.preflight import pretrained
from recipes.preflight.checks import check_rl, check_tables, require_files


def check_judge(run: Run[JudgeConfig]) -> list[str]:
    """Raise UserError for settings or data that cannot train; return warnings."""
    settings = run.settings
    mode = "pairwise" if isinstance(settings, PairwiseJudgeConfig) else "pointwise"
    check_rl(run)
    require_files(settings)
    warnings = check_tables(run, lambda path: validate_judge_table(path, mode))
    if isinstance(settings, PairwiseJudgeConfig):
        _check_orders(settings)
    return warnings + pretrained.prepare(run, lists=False)


def _check_orders(settings: PairwiseJudgeConfig) -> None:
    """Where both orders of a pair count together, the training data have them and a batch has room for both."""
    if settings.orders == SEPARATE:
        return
    if settings.train_batch_size % 2:
        raise UserError(f"TRAIN_BATCH_SIZE={settings.train_batch_size}: even with convrec.orders={settings.orders}")
    files = listed(settings.train_file)
    pairs_of([row for path in files for row in read_judge_table(path, "pairwise")], f"TRAIN_FILE={', '.join(files)}")
