"""What the recipes of judges check before anything expensive starts."""

from omegaconf import DictConfig

from convrec.errors import UserError
from convrec.judges.orders import SEPARATE, pairs_of
from convrec.judges.schema import read_judge_table, validate_judge_table
from convrec.runs.folder import listed
from recipes.preflight import pretrained
from recipes.preflight.checks import check_rl, check_tables, require_files


def check_judge(config: DictConfig) -> list[str]:
    """Raise UserError for settings or data that cannot train; return warnings."""
    mode = "pairwise" if "orders" in config.convrec else "pointwise"
    check_rl(config)
    require_files(config)
    warnings = check_tables(config, lambda path: validate_judge_table(path, mode))
    _check_orders(config)
    return warnings + pretrained.prepare(config, lists=False)


def _check_orders(config: DictConfig) -> None:
    """Where both orders of a pair count together, the training data have them and a batch has room for both."""
    orders = config.convrec.get("orders", SEPARATE)
    if orders == SEPARATE:
        return
    if config.data.train_batch_size % 2:
        raise UserError(f"TRAIN_BATCH_SIZE={config.data.train_batch_size}: even with convrec.orders={orders}")
    files = listed(config.data.train_files)
    pairs_of([row for path in files for row in read_judge_table(path, "pairwise")], f"TRAIN_FILE={', '.join(files)}")
