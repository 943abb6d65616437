"""Register our names with verl, and check that every process of a run has the same source.

verl's registries know neither ranks nor rank returns: a registered estimator gets token rewards, a registered loss gets
log-probs and advantages. So the rank-level method runs in `convrec.training.rank_trainer.RankGRPOTrainer`. The two
functions registered here only raise an error if a config uses them with another trainer.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NoReturn

from convrec.base.shipped import REWARD
from convrec.lists import user_rewards
from convrec.rank_grpo import NAME

DRIVERS_DIGEST = "CONVREC_DRIVERS_DIGEST"  # variable of a run's workers: the driver's `compute_source_digest()`
USER_MODULE = "CONVREC_USER_MODULE"  # variable of the driver and its workers: the module of a custom reward


def _require_trainer(*args: Any, **kwargs: Any) -> NoReturn:
    raise ValueError(
        f"`{NAME}` needs the ranks of the response, which verl does not pass to registered functions: "
        f"set trainer.v1.trainer_mode={NAME} (convrec train rank-grpo does)"
    )


def register() -> None:
    """Register the estimator and the policy loss in this process; a second call has no effect."""
    from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss

    register_adv_est(NAME)(_require_trainer)
    register_policy_loss(NAME)(_require_trainer)


def compute_source_digest() -> str:
    """Return a digest of the source and tables of convrec, reward and the package of USER_MODULE.

    It covers names and contents of the files that this process would import. Two nodes with equal digests compute the
    same.
    """
    packages = [("convrec", Path(__file__).parents[1])]
    for module in filter(None, [REWARD, os.environ.get(USER_MODULE)]):
        packages += [(package.name, package) for package in user_rewards.sources(module)]
    # The first file of a name counts, as in an import of a package that is spread over two folders (no __init__.py).
    files: dict[str, bytes] = {}
    for name, package in packages:
        for path in package.rglob("*.*") if package.is_dir() else [package]:
            if path.suffix in (".py", ".yaml") and "_conf" not in path.parts:  # a wheel has conf/ inside convrec
                files.setdefault(f"{name}/{path.relative_to(package).as_posix()}", path.read_bytes())
    digest = hashlib.sha256()
    for file, content in sorted(files.items()):
        digest.update(file.encode() + content)
    return digest.hexdigest()[:16]


def check_worker() -> None:
    """Check in a worker, before it builds a model, that its source is that of the driver.

    Raises:
        RuntimeError: the sources differ.
    """
    drivers_digest = os.environ.get(DRIVERS_DIGEST)
    digest = compute_source_digest()
    if drivers_digest in (None, digest):
        return
    import ray

    packages = " or ".join(["convrec", *filter(None, [os.environ.get(USER_MODULE)])])
    raise RuntimeError(
        f"a worker on {ray.util.get_node_ip_address()} has another version of {packages} than the driver "
        f"({Path(__file__).parents[1]}, {digest} instead of {drivers_digest}): install the same version on every node"
    )


def register_rollout() -> None:
    """Let rollout `vllm` start our server, and on a CPU the one whose workers can receive new weights."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from convrec.cpu.platform import is_cpu_host

    def load() -> type:
        if is_cpu_host():
            from convrec.cpu.server import CPUReplica

            return CPUReplica
        from convrec.rollout.server import ConvRecReplica

        return ConvRecReplica

    RolloutReplicaRegistry.register("vllm", load)
