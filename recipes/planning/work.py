"""How much a run will do, steps and checkpoints."""

from convrec.base.errors import UserError
from convrec.runs.folder import listed
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig


def count_training_steps(run: Run[TrainingConfig], rows: int | None = None) -> int:
    """Return the steps of the whole run. verl drops the rows of an epoch that do not fill a batch.

    Args:
        run: of which the batch is known.
        rows: of the training data; None: those of the files, which may raise as `count_training_rows` does.
    """
    if run.settings.total_steps:
        return run.settings.total_steps
    rows = count_training_rows(run) if rows is None else rows
    return run.settings.total_epochs * (rows // run.train_batch_size)


def count_checkpoints(run: Run[TrainingConfig], steps: int) -> tuple[int, int]:
    """(how many are written, how many lie there at once): the last step is always saved, the one being written and the
    best are kept beside the newest SAVE_KEEP."""
    written = max(1, -(-steps // run.settings.save_freq))
    keep = run.save_keep
    return written, min(written, keep + 2) if keep else written


def count_training_rows(run: Run[TrainingConfig]) -> int:
    """Return how many rows of the training files are read.

    Raises:
        OSError: a file is not there.
        UserError: a file is no parquet.
    """
    return _count_rows(run.settings.train_file, run.max_training_rows)


def count_validation_rows(run: Run[TrainingConfig]) -> int:
    """As `count_training_rows`, of the validation files."""
    return _count_rows(run.settings.val_file, run.max_validation_rows)


def _count_rows(files: str | list[str], most: int) -> int:
    import pyarrow.parquet as pq  # here: a wrong variable is to be told at once
    from pyarrow import ArrowInvalid

    rows = 0
    for path in listed(files):
        try:
            rows += pq.read_metadata(path).num_rows
        except ArrowInvalid as error:
            raise UserError(f"{path}: not a parquet file, or cut off ({error})") from error
    return min(rows, most) if most > 0 else rows
