"""Our names in verl's registries, and the check that every process of a run has the same source.

verl's registries see neither ranks nor rank returns: a registered estimator gets token rewards, a registered loss gets
log-probs and advantages. The rank-level method therefore runs in `convrec.training.rank_trainer.RankGRPOTrainer`, and
the two functions registered here only say so when a config asks for them under another trainer.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NoReturn

from convrec.base.shipped import REWARD
from convrec.lists import user_rewards
from convrec.rank_grpo import NAME

DRIVERS_DIGEST = "CONVREC_DRIVERS_DIGEST"  # in the environment of a run's workers: the driver's `source_digest()`
USER_MODULE = "CONVREC_USER_MODULE"  # in the environment of the driver and its workers: where the user's reward is


def _needs_the_trainer(*args: Any, **kwargs: Any) -> NoReturn:
    raise ValueError(
        f"`{NAME}` needs the ranks of the response, which verl's registries do not carry: "
        f"set trainer.v1.trainer_mode={NAME} (convrec train rank-grpo does)"
    )


def register() -> None:
    """Register the estimator and the policy loss in this process. Calling it again does nothing."""
    from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss

    register_adv_est(NAME)(_needs_the_trainer)
    register_policy_loss(NAME)(_needs_the_trainer)


def source_digest() -> str:
    """Digest of the source of convrec, reward and the package of USER_MODULE as this process would import it, and of
    their tables, by name and content of the files. Two nodes with the same one run the same maths."""
    packages = [("convrec", Path(__file__).parents[1])]
    for module in filter(None, [REWARD, os.environ.get(USER_MODULE)]):
        packages += [(package.name, package) for package in user_rewards.sources(module)]
    # by name, the first one: so is a package found that lies in two folders of the path (one without __init__.py)
    files: dict[str, bytes] = {}
    for name, package in packages:
        for path in package.rglob("*.*") if package.is_dir() else [package]:
            if path.suffix in (".py", ".yaml") and "_conf" not in path.parts:  # a wheel has conf/ within convrec
                files.setdefault(f"{name}/{path.relative_to(package).as_posix()}", path.read_bytes())
    digest = hashlib.sha256()
    for file, content in sorted(files.items()):
        digest.update(file.encode() + content)
    return digest.hexdigest()[:16]


def check_worker() -> None:
    """For a run's worker, before it builds a model. Raises RuntimeError when it runs other source than the driver."""
    drivers = os.environ.get(DRIVERS_DIGEST)
    digest = source_digest()
    if drivers in (None, digest):
        return
    import ray

    what = " or ".join(["convrec", *filter(None, [os.environ.get(USER_MODULE)])])
    raise RuntimeError(
        f"a worker on {ray.util.get_node_ip_address()} runs another {what} than the driver "
        f"({Path(__file__).parents[1]}, {digest} instead of {drivers}): install the same version on every node"
    )


def register_rollout() -> None:
    """Make rollout `vllm` start our server, on CPU the one whose workers can take new weights."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from convrec.cpu.platform import is_cpu_host

    def load() -> type:
        if is_cpu_host():
            from convrec.cpu.server import CPUReplica

            return CPUReplica
        from convrec.rollout.server import ConvRecReplica

        return ConvRecReplica

    RolloutReplicaRegistry.register("vllm", load)
