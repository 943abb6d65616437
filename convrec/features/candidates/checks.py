"""Checks that the prompts of a run's tables name as many candidates as its settings say."""

from collections.abc import Sequence

import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.features.candidates.prompts import count_candidates

CHECKED_ROWS = 500  # at the beginning of each file


def check(num_candidates: int, files: Sequence[str]) -> list[str]:
    """Compare the first prompts of each file with `convrec.candidates`, the number that serving will name.

    Args:
        num_candidates: the setting.
        files: parquet tables with a column `prompt`.

    Returns:
        A warning for each file whose prompts name fewer candidates.

    Raises:
        UserError: prompts name more candidates, or some name none although the setting is above 0.
    """
    warnings = []
    for path in files:
        first = next(pq.ParquetFile(path).iter_batches(CHECKED_ROWS, columns=["prompt"]))
        counts = [count_candidates(prompt[0]["content"]) for prompt in first["prompt"].to_pylist()]
        most = max(counts)
        if most > num_candidates:
            fix = f"Set CANDIDATES={most}."
            if num_candidates:
                fix = f"Use tables from `convrec retrieval candidates --count {num_candidates}`."
            raise UserError(
                "candidates.too-many",
                f"{path}: prompts name {most} candidates, but CANDIDATES={num_candidates}. {fix}",
            )
        if num_candidates and min(counts) == 0:
            raise UserError(
                "candidates.missing",
                f"{path}: prompts name 0 candidates, but CANDIDATES={num_candidates}. Use tables from `convrec "
                f"retrieval candidates --count {num_candidates}`.",
            )
        if most < num_candidates:
            warnings.append(
                f"{path}: prompts name at most {most} candidates, but CANDIDATES={num_candidates}, and serving names "
                f"{num_candidates}"
            )
    return warnings
