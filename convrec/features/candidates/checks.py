"""Do the prompts of a run's tables name as many candidates as its settings say?"""

from collections.abc import Sequence

import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.features.candidates.prompts import count_candidates

CHECKED_ROWS = 500  # at the beginning of each file


def check(num_candidates: int, files: Sequence[str]) -> list[str]:
    """Compare the first prompts of each file with `convrec.candidates`, as serving will name that many.

    Returns:
        A warning for each file whose prompts name fewer.

    Raises:
        UserError: prompts name more candidates, or some name none although the setting is above 0.
    """
    warnings = []
    for path in files:
        first = next(pq.ParquetFile(path).iter_batches(CHECKED_ROWS, columns=["prompt"]))
        counts = [count_candidates(prompt[0]["content"]) for prompt in first["prompt"].to_pylist()]
        most = max(counts)
        if most > num_candidates:
            fix = f"say CANDIDATES={most}"
            if num_candidates:
                fix = f"take tables of `convrec retrieval candidates --count {num_candidates}`"
            raise UserError(f"{path}: prompts name {most} candidates, and CANDIDATES={num_candidates}; {fix}")
        if num_candidates and min(counts) == 0:
            raise UserError(
                f"{path}: prompts name 0 candidates, and CANDIDATES={num_candidates}; take tables of `convrec "
                f"retrieval candidates --count {num_candidates}`"
            )
        if most < num_candidates:
            warnings.append(
                f"{path}: prompts name {most} candidates at most, and CANDIDATES={num_candidates}: serving would name "
                f"{num_candidates}"
            )
    return warnings
