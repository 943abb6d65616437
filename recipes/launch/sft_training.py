"""Run verl's SFT trainers: in the driver's process for one device of this machine, on Ray for several devices."""

import os
from typing import Any

from omegaconf import DictConfig

from convrec.checkpoints.plain_load import use_plain_load
from convrec.settings.run import Run
from convrec.training.trackers import tracking
from recipes.launch.ray_training import use_ray
from recipes.preflight.cores import uses_ray

# The variables that torchrun would set; with port 0 torch takes a free one.
ONE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
ONE_PROCESS |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def train(run: Run[Any]) -> None:
    """Run verl's SFT trainer until the run is finished."""
    config = run.verl_config
    if not uses_ray(run):
        _train_here(config)
        return
    with use_ray(config, {}):
        from convrec.training.sft.on_ray import ConvRecRaySFTTrainer

        use_plain_load()  # this process loads the position in the data
        ConvRecRaySFTTrainer(config).fit()


def _train_here(config: DictConfig) -> None:
    os.environ.update(ONE_PROCESS)
    from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

    from convrec.training.sft.trainer import ConvRecSFTTrainer
    from convrec.training.worker import prepare_process

    prepare_process()
    if config.trainer.device != "cpu":
        initialize_global_process_group()
    try:
        ConvRecSFTTrainer(config).fit()
    finally:
        tracking.finish()
    destroy_global_process_group()
