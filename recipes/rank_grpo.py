"""Rank-GRPO training: settings -> checks -> Ray -> verl's trainer. Run by run_rank_grpo.sh.

python -m recipes.rank_grpo [hydra overrides]
"""

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes import checks, host, runner

PARTS = "Ray, the FSDP actor and the vLLM rollout server"
SHOWN = {"val/ndcg": "val NDCG", "rank_grpo/return@1": "return@1", "rank_grpo/dcg": "DCG", "actor/kl": "KL"}
LOCAL_RAY_ONLY = ("num_gpus", "num_cpus", "include_dashboard")  # a cluster has its own; ray.init refuses them


def start_ray(config: DictConfig, environment: dict[str, str]) -> None:
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    options: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    if os.environ.get("RAY_ADDRESS"):
        options = {key: value for key, value in options.items() if key not in LOCAL_RAY_ONLY}
    runtime_env = get_ppo_ray_runtime_env(config)
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
    from convrec import tracking

    tracking.install(Path(config.trainer.default_local_dir))
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    start_ray(config, host.process_environment(config.trainer.device != "cpu"))
    try:
        TaskRunnerV1.__ray_metadata__.modified_class().run(config)
    finally:
        ray.shutdown()


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    return runner.run("rank_grpo", "Rank-GRPO", PARTS, arguments, checks.check_rank_grpo, train, SHOWN)


if __name__ == "__main__":
    sys.exit(main())
