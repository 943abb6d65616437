"""What the recipes of judges check before anything expensive starts."""

from omegaconf import DictConfig

from convrec.judges.checks import check_orders
from convrec.judges.schema import validate_judge_table
from recipes.preflight import pretrained
from recipes.preflight.checks import check_rl, check_tables, require_files


def check_judge(config: DictConfig) -> list[str]:
    """Raise UserError for settings or data that cannot train; return warnings."""
    mode = "pairwise" if "orders" in config.convrec else "pointwise"
    check_rl(config)
    require_files(config)
    warnings = check_tables(config, lambda path: validate_judge_table(path, mode))
    check_orders(config)
    return warnings + pretrained.prepare(config, lists=False)
