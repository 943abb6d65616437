"""How much a run will do, steps and checkpoints; and what it reads: its model and its files."""

from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from convrec.runs.folder import RL_MODEL, SFT_MODEL, listed

# in the config once a constrained run has written it, beside the catalog (recipes.launch.ray_training)
TRIE_KEY = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.constrained_trie"
FILE_KEYS = ("data.train_files", "data.val_files", "convrec.catalog_file", TRIE_KEY)  # what every node reads


def model_key(config: DictConfig) -> str:
    """Where the config names the model that its run starts from."""
    return RL_MODEL if "actor_rollout_ref" in config else SFT_MODEL


def model_of(config: DictConfig) -> str:
    return str(OmegaConf.select(config, model_key(config)))


def steps_of(config: DictConfig, rows: int | None = None) -> int:
    """Of the whole run. verl drops the rows of an epoch that do not fill a batch. rows: None: those of the files, which
    may raise as `rows_of` does."""
    if config.trainer.total_training_steps:
        return int(config.trainer.total_training_steps)
    rows = rows_of(config) if rows is None else rows
    return int(config.trainer.total_epochs * (rows // config.data.train_batch_size))


def checkpoints_of(config: DictConfig, steps: int) -> tuple[int, int]:
    """(how many are written, how many lie there at once): the last step is always saved, the one being written and the
    best are kept beside the newest SAVE_KEEP."""
    every, keep = config.trainer.save_freq, config.trainer.get("max_actor_ckpt_to_keep")
    keep = keep or config.trainer.get("max_ckpt_to_keep")
    written = max(1, -(-steps // every)) if every > 0 else 1
    return written, min(written, keep + 2) if keep else written


def rows_of(config: DictConfig, key: str = "train_files") -> int:
    """That are read of the files that config.data names under this key. Raises OSError for a file that is not there,
    UserError for one that is no parquet."""
    import pyarrow.parquet as pq  # here: a wrong variable is to be told at once
    from pyarrow import ArrowInvalid

    rows, most = 0, config.data.get(key.replace("files", "max_samples"), -1)
    for path in listed(config.data[key]):
        try:
            rows += pq.read_metadata(path).num_rows
        except ArrowInvalid as error:
            raise UserError(f"{path}: not a parquet file, or cut off ({error})") from error
    return min(rows, most) if most > 0 else rows
