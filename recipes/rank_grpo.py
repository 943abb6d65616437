"""Rank-GRPO training: settings -> checks -> Ray -> verl's trainer. Run by run_rank_grpo.sh.

python -m recipes.rank_grpo [hydra overrides]
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from convrec.runs import latest_step, next_metrics_file
from recipes import checks, host
from recipes.console import Console, output_to, progress, seconds_since
from recipes.settings import compose, finished_message, save_config

SHOWN = {"val/ndcg": "val NDCG", "rank_grpo/return@1": "return@1", "rank_grpo/dcg": "DCG", "actor/kl": "KL"}


def settings(arguments: list[str]) -> DictConfig:
    config = compose("rank_grpo", arguments)
    if not host.num_accelerators():
        _drop_accelerator_only(config)
    return config


def _drop_accelerator_only(config: DictConfig) -> None:
    # a cluster has its own slots, which ray.init may not name
    if os.environ.get("RAY_ADDRESS"):
        for key in ("num_gpus", "num_cpus", "include_dashboard"):
            config.ray_kwargs.ray_init.pop(key, None)


def start_ray(config: DictConfig, environment: dict[str, str]) -> None:
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    runtime_env = get_ppo_ray_runtime_env(config)
    options = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    asked_for = options.pop("runtime_env", None) or {}
    runtime_env["env_vars"] = {**runtime_env["env_vars"], **environment, **(asked_for.pop("env_vars", None) or {})}
    runtime_env |= {key: value for key, value in asked_for.items() if value is not None}
    ray.init(runtime_env=runtime_env, **options)


def train(config: DictConfig) -> None:
    """Run verl's task in this process (its remote form costs one more process and its imports)."""
    import ray
    from verl.trainer.main_ppo import TaskRunnerV1
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    import convrec.trainer  # noqa: F401  registers trainer, estimator and loss

    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    environment = host.process_environment(config.trainer.device != "cpu")
    start_ray(config, environment)
    try:
        TaskRunnerV1.__ray_metadata__.modified_class().run(config)
    finally:
        ray.shutdown()


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 trained, 1 failed while training (the log says why), 2 bad input."""
    console = Console()
    start = time.monotonic()
    try:
        config = settings(sys.argv[1:] if arguments is None else arguments)
        for warning in checks.check_rank_grpo(config):
            console.say(f"warning: {warning}")
    except UserError as error:
        console.say(f"error: {error}")
        return 2

    run_folder = Path(config.trainer.default_local_dir)
    done = latest_step(run_folder)
    if config.trainer.total_training_steps and done >= config.trainer.total_training_steps:
        console.say(finished_message(run_folder, done))
        return 0
    os.environ.update(host.process_environment(config.trainer.device != "cpu"))
    os.environ["VERL_FILE_LOGGER_PATH"] = str(next_metrics_file(run_folder))
    save_config(config, run_folder)
    log_file = run_folder / "run.log"
    console.say(f"Rank-GRPO of {config.actor_rollout_ref.model.path} into {run_folder}, full log in {log_file}")
    if done:
        console.say(f"resuming after step {done}")
    console.say("starting Ray, the FSDP actor and the vLLM rollout server ...")
    steps: dict[str, Any] = {"total": config.trainer.total_training_steps}
    try:
        with output_to(log_file), progress(console, run_folder, lambda: steps["total"], "Rank-GRPO", SHOWN):
            train(config)
    except (KeyboardInterrupt, SystemExit):
        console.say(f"stopped after step {latest_step(run_folder)}; the same command resumes")
        return 130
    except Exception as error:
        with open(log_file, "a") as log:
            import traceback

            traceback.print_exc(file=log)
        console.say(f"failed after {seconds_since(start)}: {_reason(error)}\nfull log: {log_file}")
        return 1
    console.say(f"Rank-GRPO finished in {seconds_since(start)}: {run_folder}")
    return 0


def _reason(error: BaseException) -> str:
    """The innermost cause: Ray wraps a worker's error in its own."""
    cause = getattr(error, "cause", None) or error
    text = str(cause).strip() or type(cause).__name__
    return text.splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
