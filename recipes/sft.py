"""SFT warm start: settings -> checks -> verl's SFT trainer. Run by run_sft.sh.

    python -m recipes.sft [hydra overrides]

One device trains in this process, several through torchrun. On several nodes set N_NODES and start torchrun yourself on
each of them; without a terminal's comforts, and from the checkpoint that the tracker names.
"""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from omegaconf import DictConfig

from convrec.checkpoints import saving
from convrec.errors import UserError
from convrec.runs import guard
from convrec.runs.folder import hold, next_metrics_file
from recipes.launch import runner
from recipes.launch.environment import process_environment
from recipes.launch.settings import compose
from recipes.preflight import checks

SHOWN = {"train/loss": "loss", "val/loss": "val loss"}


def train(config: DictConfig) -> None:
    """verl's SFT trainer in this process, one of torchrun's or the only one."""
    from verl.trainer import sft_trainer
    from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

    from convrec.cpu.engine import register_engine
    from convrec.cpu.process_group import init_process_group
    from convrec.training import tracking
    from convrec.training.sft_trainer import ConvRecSFTTrainer
    from convrec.training.without_flash_attention import use_length_groups, use_whole_batch_log_probs

    use_whole_batch_log_probs()
    use_length_groups()
    tracking.install(sft_trainer, Path(config.trainer.default_local_dir), config.trainer.experiment_name)
    if config.trainer.device == "cpu":
        register_engine()
        init_process_group()
    else:
        initialize_global_process_group()
    ConvRecSFTTrainer(config).fit()
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


def _train_on_all_devices(config: DictConfig, arguments: list[str]) -> None:
    devices = config.trainer.n_gpus_per_node
    if devices == 1:
        os.environ.update(_single_process_environment())
        train(config)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={devices}"]
    subprocess.run([*command, "-m", "recipes.sft", *arguments], check=True)


def _train_as_torchrun_process(arguments: list[str]) -> int:
    is_first = os.environ["RANK"] == "0"
    by_user = guard.FOLDER_VARIABLE not in os.environ  # else `runner` has started torchrun, and holds the run folder
    try:
        config = compose("sft", arguments)
        checks.check_sft(config)
        os.environ.update(process_environment(config.trainer.device != "cpu"))
        run_folder = Path(config.trainer.default_local_dir)
        saving.check_world_size(run_folder, int(os.environ["WORLD_SIZE"]))
        with hold(run_folder) if is_first and by_user else contextlib.nullcontext():
            if is_first:
                os.environ.setdefault("VERL_FILE_LOGGER_PATH", str(next_metrics_file(run_folder)))
            train(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if "LOCAL_RANK" in os.environ:
        return _train_as_torchrun_process(arguments)
    return runner.run(
        "sft",
        "SFT",
        "verl's SFT trainer",
        arguments,
        checks.check_sft,
        lambda config: _train_on_all_devices(config, arguments),
        SHOWN,
    )


if __name__ == "__main__":
    sys.exit(main())
