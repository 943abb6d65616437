"""How much a run will do: steps, validations, checkpoints, and hours where the model of a step on GPUs holds."""

from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf
from pyarrow import ArrowInvalid

from recipes.preflight import step_time
from recipes.preflight.estimate import Requirements, model_size
from recipes.preflight.finding import GIB


def steps_of(config: DictConfig, rows: int) -> int:
    """Of the whole run. verl drops the rows of an epoch that do not fill a batch."""
    if config.trainer.total_training_steps:
        return int(config.trainer.total_training_steps)
    return int(config.trainer.total_epochs * (rows // config.data.train_batch_size))


def checkpoints_of(config: DictConfig, steps: int, keeps_best: bool) -> tuple[int, int]:
    """(how many are written, how many lie there at once): the last step is always saved, the one being written and the
    best are kept beside the newest SAVE_KEEP."""
    every, keep = config.trainer.save_freq, config.trainer.get("max_actor_ckpt_to_keep")
    keep = keep or config.trainer.get("max_ckpt_to_keep")
    written = max(1, -(-steps // every)) if every > 0 else 1
    return written, min(written, keep + 1 + keeps_best) if keep else written


def kept_checkpoints(config: DictConfig, keeps_best: bool) -> int:
    """How many will lie on disk at once; 1 where the files that say how many steps there are cannot be read."""
    try:
        steps = steps_of(config, 0 if config.trainer.total_training_steps else rows_of(config))
    except (OSError, ArrowInvalid):
        return 1
    return checkpoints_of(config, steps, keeps_best)[1]


def rows_of(config: DictConfig) -> int:
    files: Any = config.data.train_files
    paths = [files] if isinstance(files, str) else list(files)
    return sum(pq.read_metadata(path).num_rows for path in paths)


def lines(config: DictConfig, requirements: Requirements) -> list[str]:
    """The amount of work as text. The files of the config are there (Recipe.check)."""
    rows = rows_of(config)
    steps = steps_of(config, rows)
    batch, test = config.data.train_batch_size, config.trainer.test_freq
    written, kept = checkpoints_of(config, steps, requirements.keeps_best)
    validations = f"a validation every {test} steps" if test > 0 else "no validation on the way"
    text = [f"steps: {steps:,} of {batch:,} rows out of {rows:,}; {validations}"]
    try:
        size = model_size(OmegaConf.select(config, requirements.model_key))
    except (OSError, ValueError):
        return [*text, f"checkpoints: {written}, {kept} of them kept; the model is not here, so their size is unknown"]
    checkpoint = size.parameters * 16 / GIB
    text.append(
        f"checkpoints: {written}, {kept} of them kept: {checkpoint:.2f} GiB each, {kept * checkpoint:.1f} in all"
    )
    return text + _hours(config, size.parameters, steps)


def _hours(config: DictConfig, parameters: int, steps: int) -> list[str]:
    rollout = OmegaConf.select(config, "actor_rollout_ref.rollout")
    if rollout is None or config.trainer.device == "cpu":
        return []
    from transformers import AutoConfig

    model: Any = AutoConfig.from_pretrained(config.actor_rollout_ref.model.path, local_files_only=True)
    text = model.get_text_config()
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache_bytes = step_time.kv_bytes(text.num_hidden_layers, text.num_key_value_heads, head_size)
    # the lengths of the config are limits; means were measured on the Reddit-v2 prompts and lists of 20
    batch = step_time.Batch(
        config.data.train_batch_size, rollout.n, min(400, config.data.max_prompt_length),
        min(220, config.data.max_response_length),
    )  # fmt: skip
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    parts = step_time.step_seconds(parameters, cache_bytes, gpus, batch)
    seconds = sum(parts.values())
    shares = ", ".join(f"{name} {part:.2f} s" for name, part in parts.items())
    return [
        f"time: about {steps * seconds / 3600:.1f} hours of steps by a model of H100s, not a measurement ({shares}; "
        f"prompts of {batch.prompt} and responses of {batch.response} tokens), validation and checkpoints not counted"
    ]
