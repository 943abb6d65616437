"""verl's stock GRPO on a CPU host, for bench_training.py: settings of this project, nothing else of it that is fast.

It has the CPU platform, FSDP engine, process group and vLLM server without which verl 0.9.1 does not run here; trainer,
loss, replay buffer, log-probs, micro-batches, agent loop and vLLM's executor are verl's and vLLM's own. With `--bare`
first, Ray and its processes are started as `python -m verl.trainer.main_ppo` does; else as ours are.
"""

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.engine_workers import ActorRolloutRefWorker

from convrec.cpu.engine import init_process_group, register_engine
from convrec.rollout import queue
from convrec.runs import guard
from convrec.runs.guard import move_socket_to_run_folder
from convrec.training.registration import register_rollout
from recipes.launch import ray_training
from recipes.launch.environment import make_process_environment
from recipes.launch.settings import compose, save_config
from recipes.preflight.precision import set_precision

STOCK = [
    "trainer.v1.trainer_mode=stock",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp",
    "actor_rollout_ref.rollout.calculate_log_probs=false",
    "reward.reward_manager.source=register",
    "reward.reward_manager.name=naive",
]


class StockWorker(ActorRolloutRefWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        register_engine()
        init_process_group()
        super().init_model()
        if hasattr(self.rollout, "zmq_handle"):
            self.rollout.zmq_handle = move_socket_to_run_folder(self.rollout.zmq_handle)


@register_trainer("stock")
class StockTrainer(PPOTrainerSync):
    def __init__(self, config: Any) -> None:
        register_rollout()
        super().__init__(config)

    @property
    def trainer_mode(self) -> str:
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None: ...

    def _init_resource_pool_mgr(self) -> None:
        import ray

        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(StockWorker)


def main() -> None:
    is_bare, overrides = sys.argv[1] == "--bare", [text for text in sys.argv[1:] if text != "--bare"]
    run = compose("rank_grpo", [*STOCK, *overrides])
    set_precision(run)
    config = run.verl_config
    run_folder = run.folder
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["VERL_FILE_LOGGER_PATH"] = str(run_folder / "metrics" / "0.jsonl")
    (run_folder / "metrics").mkdir(parents=True)
    save_config(config, run_folder)
    if is_bare:
        run_bare(config)
        return
    os.environ.update(make_process_environment(has_accelerator=False))
    queue.start = lambda settings: None  # verl's processes know only the queue that verl's task starts
    with guard.guarded("stock: gone"):
        ray_training.preload_workers(config)
        ray_training.train(run)


def run_bare(config: DictConfig) -> None:
    import ray
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    @ray.remote
    class Task(TaskRunnerV1.__ray_metadata__.modified_class):
        def run(self, config: DictConfig) -> None:
            import stock_grpo  # noqa: F401  # its trainer, of verl's registry

            super().run(config)

    os.environ.setdefault("VERL_PLATFORM", "cpu")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB: vLLM's own is half of the memory, beside a trainer
    run_ppo(config, Task)


if __name__ == "__main__":
    main()
