"""verl's SFT trainer, in the driver's process or in torchrun's: what SFT trains with."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from omegaconf import DictConfig

from convrec.runs import card
from convrec.runs.folder import step_of
from recipes.launch.recipe import Recipe


def train(config: DictConfig) -> None:
    """verl's SFT trainer in this process, one of torchrun's or the only one."""
    from verl.trainer import sft_trainer
    from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

    from convrec.checkpoints.plain_load import use_plain_load
    from convrec.cpu.engine import register_engine
    from convrec.cpu.process_group import init_process_group
    from convrec.training import packed_attention, tracking
    from convrec.training.sft_trainer import ConvRecSFTTrainer
    from convrec.training.without_flash_attention import use_length_groups, use_whole_batch_log_probs

    use_plain_load()
    packed_attention.register()
    use_whole_batch_log_probs()
    use_length_groups()
    tracking.install(sft_trainer, Path(config.trainer.default_local_dir), config.trainer.experiment_name)
    if config.trainer.device == "cpu":
        register_engine()
        init_process_group()
    else:
        initialize_global_process_group()
    try:
        ConvRecSFTTrainer(config).fit()
    finally:
        tracking.finish()
    destroy_global_process_group()


def _single_process_environment() -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def train_on_all_devices(recipe: Recipe, config: DictConfig, overrides: list[str]) -> None:
    """In this process, or in one for each device, which read their settings anew."""
    devices = config.trainer.n_gpus_per_node
    try:
        if devices == 1:
            os.environ.update(_single_process_environment())
            train(config)
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={devices}"]
            subprocess.run([*command, "-m", *recipe.command, *overrides], check=True)
    finally:
        _write_cards(Path(config.trainer.default_local_dir))


def _write_cards(run_folder: Path) -> None:
    """Of every checkpoint that has none; verl's SFT trainer has no seam where it saves."""
    for exported in run_folder.glob("global_step_*/huggingface"):
        if not (exported / card.CARD).exists() and (step := step_of(exported.parent)) is not None:
            card.write_card(exported, run_folder, step)
