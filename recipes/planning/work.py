"""Count the steps, checkpoints and rows of a run."""

from convrec.base.errors import UserError
from convrec.runs.folder import listed
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig


def count_training_steps(run: Run[TrainingConfig], rows: int | None = None) -> int:
    """Return the steps of the whole run. verl drops the rows of an epoch that do not fill a batch.

    Args:
        run: a run with a batch size.
        rows: rows of the training data; None reads them from the files, with the errors of `count_training_rows`.
    """
    if run.settings.total_steps:
        return run.settings.total_steps
    rows = count_training_rows(run) if rows is None else rows
    return run.settings.total_epochs * (rows // run.train_batch_size)


def count_checkpoints(run: Run[TrainingConfig], steps: int) -> tuple[int, int]:
    """Count the checkpoints of a run.

    The last step is always saved. Besides the newest SAVE_KEEP, the best and the one being written exist.

    Args:
        run: the run.
        steps: its number of steps.

    Returns:
        The number of checkpoints that the run writes, and the largest number that exists at once.
    """
    num_written = max(1, -(-steps // run.settings.save_freq))
    keep = run.save_keep
    return num_written, min(num_written, keep + 2) if keep else num_written


def count_training_rows(run: Run[TrainingConfig]) -> int:
    """Return the number of rows that the run reads from its training files.

    Raises:
        OSError: a file does not exist.
        UserError: a file is not parquet.
    """
    return _count_rows(run.settings.train_file, run.max_training_rows)


def count_validation_rows(run: Run[TrainingConfig]) -> int:
    """Return the number of rows that the run reads from its validation files; see `count_training_rows`."""
    return _count_rows(run.settings.val_file, run.max_validation_rows)


def _count_rows(files: str | list[str], max_rows: int) -> int:
    import pyarrow.parquet as pq  # late, so that errors in variables do not wait for the import
    from pyarrow import ArrowInvalid

    rows = 0
    for path in listed(files):
        try:
            rows += pq.read_metadata(path).num_rows
        except ArrowInvalid as error:
            raise UserError("plan.damaged-file", f"{path}: not a parquet file, or truncated ({error})") from error
    return min(rows, max_rows) if max_rows > 0 else rows
