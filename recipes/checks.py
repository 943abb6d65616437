"""What a recipe checks before anything expensive starts. Each failure names the variable, file or row and the mend."""

from pathlib import Path

from omegaconf import DictConfig

from convrec.catalog import load_catalog
from convrec.checkpoints import check_model_path
from convrec.errors import UserError
from convrec.schema import validate_catalog, validate_rl_table, validate_sft_table


def check_files(variable: str, files: str | list[str]) -> list[str]:
    paths = [files] if isinstance(files, str) else list(files)
    for path in paths:
        if not Path(path).is_file():
            raise UserError(f"{variable}={path}: no such file")
    return paths


def check_rank_grpo(config: DictConfig) -> list[str]:
    """Raise UserError for settings or data that cannot train; return warnings for what can but looks wrong."""
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    if rollout.temperature != 1.0 or rollout.top_p != 1.0 or rollout.top_k not in (-1, 0):
        raise UserError(
            f"actor_rollout_ref.rollout: temperature={rollout.temperature}, top_p={rollout.top_p}, "
            f"top_k={rollout.top_k} sample from another distribution than the policy, which biases the importance "
            "ratio: use temperature=1 top_p=1 top_k=-1"
        )
    if rollout.n < 2:
        raise UserError(f"ROLLOUT_N={rollout.n}: advantages compare the rollouts of a prompt, so at least 2 are needed")
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    responses = config.data.train_batch_size * rollout.n
    if responses % devices:
        raise UserError(
            f"TRAIN_BATCH_SIZE={config.data.train_batch_size} x ROLLOUT_N={rollout.n} = {responses} responses do not "
            f"divide over {devices} devices (N_GPUS_PER_NODE x N_NODES): choose a multiple"
        )
    if config.data.train_batch_size % actor.ppo_mini_batch_size:
        raise UserError(
            f"TRAIN_BATCH_SIZE={config.data.train_batch_size} is not a multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size}"
        )
    if devices % rollout.tensor_model_parallel_size:
        raise UserError(
            f"TENSOR_PARALLEL={rollout.tensor_model_parallel_size} does not divide the {devices} devices of the run"
        )
    if config.convrec.reward == "exp_gamma" and not (config.convrec.gamma and config.convrec.gamma > 1):
        raise UserError(f"REWARD=exp_gamma needs convrec.gamma above 1, not {config.convrec.gamma}")
    schedule = config.convrec.lr_schedule
    if schedule and (schedule[0][0] != 0 or [s for s, _ in schedule] != sorted({s for s, _ in schedule})):
        raise UserError(
            f"convrec.lr_schedule={schedule}: (step, lr) pairs in rising order of step, the first at step 0"
        )
    check_model_path(config.actor_rollout_ref.model.path)

    warnings: list[str] = []
    rows = 0
    for path in check_files("TRAIN_FILE", config.data.train_files):
        report = validate_rl_table(path)
        rows += report.rows
        warnings += report.warnings
    if rows < config.data.train_batch_size:
        raise UserError(f"TRAIN_FILE has {rows} rows, fewer than TRAIN_BATCH_SIZE={config.data.train_batch_size}")
    for path in check_files("VAL_FILE", config.data.val_files):
        warnings += validate_rl_table(path).warnings
    (catalog_file,) = check_files("CATALOG_FILE", config.convrec.catalog_file)
    validate_catalog(catalog_file)
    warnings += [f"{catalog_file}: {problem}" for problem in load_catalog(catalog_file).problems]
    return warnings


def check_sft(config: DictConfig) -> list[str]:
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    if config.data.train_batch_size % devices:
        raise UserError(
            f"TRAIN_BATCH_SIZE={config.data.train_batch_size} does not divide over {devices} devices: choose a multiple"
        )
    check_model_path(config.model.path)
    warnings: list[str] = []
    rows = 0
    for path in check_files("TRAIN_FILE", config.data.train_files):
        report = validate_sft_table(path)
        rows += report.rows
        warnings += report.warnings
    if rows < config.data.train_batch_size:
        raise UserError(f"TRAIN_FILE has {rows} rows, fewer than TRAIN_BATCH_SIZE={config.data.train_batch_size}")
    if config.data.val_files:
        for path in check_files("VAL_FILE", config.data.val_files):
            warnings += validate_sft_table(path).warnings
    return warnings
