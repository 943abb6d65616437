"""Ray, started for what trains in the driver's process; and verl's trainer of every RL recipe."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec.checkpoints.plain_load import use_plain_load
from convrec.cpu import preload
from convrec.lists import user_rewards
from convrec.runs import guard
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.training import registration
from convrec.training.trackers import tracking
from recipes.launch.environment import (
    init_ray,
    process_environment,
    shut_down_ray,
    use_own_token,
    without_cloud_lookup,
    without_hidden_devices,
)
from recipes.preflight.ray_token import check_token

RUNTIME_ENV = "ray_kwargs.ray_init.runtime_env"
LOCAL_RAY_ONLY = ("num_gpus", "num_cpus", "include_dashboard")  # a cluster has its own; ray.init refuses them


def start_ray(config: DictConfig, environment: dict[str, str]) -> None:
    """Join the cluster of RAY_ADDRESS; without one, start Ray on this machine.

    Args:
        config: the run's, of which `ray_kwargs.ray_init` are arguments of ray.init.
        environment: variables of Ray's workers.

    Raises:
        UserError: The cluster asks for a token that this process has not.
    """
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    options: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    runtime_env = get_ppo_ray_runtime_env(config)
    asked_for = options.pop("runtime_env", None) or {}
    runtime_env["env_vars"] = {**runtime_env["env_vars"], **environment, **(asked_for.pop("env_vars", None) or {})}
    runtime_env["worker_process_setup_hook"] = "convrec.runs.guard.join"
    runtime_env |= asked_for
    runtime_env = {key: value for key, value in runtime_env.items() if value is not None}
    # in a submitted job: both runtime environments, ours first where they name the same variable; else Ray refuses
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    if address := os.environ.get("RAY_ADDRESS"):
        check_token(address)
        options = {key: value for key, value in options.items() if key not in LOCAL_RAY_ONLY}
        init_ray(runtime_env=runtime_env, **options)
        return
    folder = Path(os.environ[guard.FOLDER_VARIABLE])
    # "local": never another cluster that happens to run here
    options = {"address": "local", "_temp_dir": str(folder / "ray")} | options
    with without_cloud_lookup(folder), without_hidden_devices():
        init_ray(runtime_env=runtime_env, **options)


def begin(config: DictConfig) -> None:
    """Prepare the Ray that this process will start; on a cluster there is nothing to prepare.

    Ray gets a token of its own. Without a GPU, what Ray's workers need is imported from now on, beside this process's
    checks.
    """
    if os.environ.get("RAY_ADDRESS"):
        return
    folder = Path(os.environ[guard.FOLDER_VARIABLE])
    use_own_token(folder)
    if config.trainer.device == "cpu":
        preload.start(folder, OmegaConf.select(config, f"{RUNTIME_ENV}.env_vars") or {})


@contextlib.contextmanager
def started_ray(config: DictConfig, more: Mapping[str, str]) -> Iterator[None]:
    """Ray while something trains inside; a cluster's nodes are asked first whether they can.

    more: environment variables of the workers. Raises UserError for a cluster that cannot train this.
    """
    environment = process_environment(config.trainer.device != "cpu")
    folder = Path(os.environ[guard.FOLDER_VARIABLE])
    environment |= {**guard.environment(folder), **more, registration.DRIVERS_DIGEST: registration.source_digest()}
    start_ray(config, environment)
    try:
        if os.environ.get("RAY_ADDRESS"):
            from recipes.preflight import finding, findings

            for warning in finding.stop_on_failure(findings.examine(Run.from_config(config), on_cluster=True)):
                print(f"warning: {warning}", file=sys.stderr)
        yield
    finally:
        tracking.finish()
        shut_down_ray()


def train(run: Run[Any]) -> None:
    """Run verl's task in this process (its remote form costs one more process and its imports).

    Starting is mostly imports: those of TransferQueue's processes go on while this one imports verl.
    """
    from convrec.rollout import queue as rollout_queue

    config = run.verl_config
    users = user_module_environment(run.settings.reward) if isinstance(run.settings, RankGRPOConfig) else {}
    os.environ.update(users)  # the driver's digest covers the module too
    if isinstance(run.settings, RankGRPOConfig) and run.settings.constrained:
        from convrec.features.constrained import checks as constrained

        constrained.use_trie(run)
    with started_ray(config, users):
        with ThreadPoolExecutor(1) as beside:
            queue = beside.submit(rollout_queue.start, config.transfer_queue)
            task = _task(config)
            queue.result()
        task.run(config)


def user_module_environment(reward: str) -> dict[str, str]:
    """What lets a run's processes import the user's reward, and check that all have the same; {} for one of ours."""
    if not user_rewards.is_user_reward(reward):
        return {}
    folders = [str(source.parent) for source in user_rewards.own_sources(reward)]
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), *folders]  # last: another convrec may lie beside it
    return {registration.USER_MODULE: user_rewards.parse_module_name(reward), "PYTHONPATH": os.pathsep.join(paths)}


def _task(config: DictConfig) -> Any:
    """verl's, once the config is valid; imports all of verl's trainer."""
    from verl.trainer.main_ppo import TaskRunnerV1
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    use_plain_load()
    register_trainers()
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    return TaskRunnerV1.__ray_metadata__.modified_class()


def register_trainers() -> None:
    """Import the trainers that conf/ names, for their entries in verl's registry; the estimator and loss come along."""
    import convrec.judges.trainer
    import convrec.training.rank_trainer  # noqa: F401
