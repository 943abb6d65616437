"""Start Ray for a training run, and run verl's trainer of the RL recipes in the driver's process."""

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
    make_process_environment,
    shut_down_ray,
    skip_cloud_lookup,
    unhide_devices,
    use_own_token,
)
from recipes.preflight.ray_token import check_token

RUNTIME_ENV = "ray_kwargs.ray_init.runtime_env"
LOCAL_RAY_ONLY = ("num_gpus", "num_cpus", "include_dashboard")  # ray.init refuses them when it joins a cluster


def start_ray(config: DictConfig, environment: dict[str, str]) -> None:
    """Join the cluster of RAY_ADDRESS, or start Ray on this machine if it is unset.

    Args:
        config: the run's config; `ray_kwargs.ray_init` has arguments of ray.init.
        environment: variables of Ray's workers.

    Raises:
        UserError: the cluster asks for a token that this process does not have.
    """
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    options: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    runtime_env = get_ppo_ray_runtime_env(config)
    own_runtime_env = options.pop("runtime_env", None) or {}
    own_variables = own_runtime_env.pop("env_vars", None) or {}
    runtime_env["env_vars"] = {**runtime_env["env_vars"], **environment, **own_variables}
    runtime_env["worker_process_setup_hook"] = "convrec.runs.guard.register_process"
    runtime_env |= own_runtime_env
    runtime_env = {key: value for key, value in runtime_env.items() if value is not None}
    # In a submitted job both runtime environments count, and ours wins; otherwise Ray refuses a shared variable.
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    if address := os.environ.get("RAY_ADDRESS"):
        check_token(address)
        options = {key: value for key, value in options.items() if key not in LOCAL_RAY_ONLY}
        init_ray(runtime_env=runtime_env, **options)
        return
    folder = Path(os.environ[guard.FOLDER_VARIABLE])
    # "local" starts a new Ray even if a cluster runs on this machine
    options = {"address": "local", "_temp_dir": str(folder / "ray")} | options
    with skip_cloud_lookup(folder), unhide_devices():
        init_ray(runtime_env=runtime_env, **options)


def preload_workers(config: DictConfig) -> None:
    """Prepare the Ray that this process will start; with RAY_ADDRESS do nothing.

    Ray gets its own token. On a CPU, another process starts to import the packages of Ray's workers, while this one
    checks the run.
    """
    if os.environ.get("RAY_ADDRESS"):
        return
    folder = Path(os.environ[guard.FOLDER_VARIABLE])
    use_own_token(folder)
    if config.trainer.device == "cpu":
        preload.start(folder, OmegaConf.select(config, f"{RUNTIME_ENV}.env_vars") or {})


@contextlib.contextmanager
def use_ray(config: DictConfig, variables: Mapping[str, str]) -> Iterator[None]:
    """Start or join Ray for the block, and check the nodes of a cluster.

    Args:
        config: the run's config.
        variables: further environment variables of the workers.

    Raises:
        UserError: the cluster cannot train this run.
    """
    environment = make_process_environment(config.trainer.device != "cpu")
    folder = Path(os.environ[guard.FOLDER_VARIABLE])
    environment |= guard.environment(folder)
    environment |= variables
    environment[registration.DRIVERS_DIGEST] = registration.compute_source_digest()
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
    """Run verl's task in this process; as a remote task it would cost another process with its imports.

    The start is mostly imports, so TransferQueue's processes import while this one imports verl.
    """
    from convrec.rollout import queue as rollout_queue

    config = run.verl_config
    variables: dict[str, str] = {}
    if isinstance(run.settings, RankGRPOConfig):
        variables = make_module_environment(run.settings.reward)
    os.environ.update(variables)  # the driver's digest covers the user's module too
    if isinstance(run.settings, RankGRPOConfig) and run.settings.constrained:
        from convrec.features.constrained import checks as constrained

        constrained.use_trie(run)
    with use_ray(config, variables):
        with ThreadPoolExecutor(1) as executor:
            queue = executor.submit(rollout_queue.start, config.transfer_queue)
            task = _make_task(config)
            queue.result()
        task.run(config)


def make_module_environment(reward: str) -> dict[str, str]:
    """Return variables by which a run's processes import a custom reward and compare its source.

    Args:
        reward: REWARD: a built-in reward, or module:function.

    Returns:
        The variables; {} for a built-in reward.
    """
    if not user_rewards.is_user_reward(reward):
        return {}
    folders = [str(source.parent) for source in user_rewards.find_own_sources(reward)]
    # The reward's folders come last: they may contain another convrec.
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), *folders]
    return {registration.USER_MODULE: user_rewards.parse_module_name(reward), "PYTHONPATH": os.pathsep.join(paths)}


def _make_task(config: DictConfig) -> Any:
    """Validate the config and return verl's task; this imports all of verl's trainer."""
    from verl.trainer.main_ppo import TaskRunnerV1
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    use_plain_load()
    register_trainers()
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    return TaskRunnerV1.__ray_metadata__.modified_class()


def register_trainers() -> None:
    """Import the modules whose trainers, advantage estimator and loss are registered with verl on import."""
    import convrec.judges.trainer
    import convrec.training.rank_trainer  # noqa: F401
