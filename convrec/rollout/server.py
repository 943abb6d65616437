"""verl's vLLM rollout server, which ends when its engine has: who waits for a dead engine is then told by Ray."""

import asyncio
import logging
import os
from typing import Any

import ray
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.sampling_params import RequestOutputKind

from convrec.runs.guard import in_run_folder

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0


class WorkerExtension(vLLMColocateWorkerExtension):
    """What receives weights in vLLM's own process."""

    def _get_zmq_handle(self) -> str:
        return in_run_folder(super()._get_zmq_handle())


class WeightsWorker(CheckpointEngineWorker):
    """What takes the weights for a rollout with slots of its own (asynchronous training)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_adapter.zmq_handle = in_run_folder(self.server_adapter.zmq_handle)


class ConvRecHttpServer(vLLMHttpServer):
    extension: type = WorkerExtension

    def _get_worker_extension_cls(self) -> str:
        return f"{self.extension.__module__}.{self.extension.__qualname__}"

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        await super().launch_server(*args, **kwargs)
        self.end_with_engine = asyncio.create_task(self._end_with_engine())

    async def generate_group(self, requests: list[dict[str, Any]]) -> list[TokenOutput]:
        """`generate` for each: one call between processes for many. Only token ids are wanted, and only once."""
        once = {"detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
        for request in requests:
            request["sampling_params"] |= once
        return await asyncio.gather(*(self.generate(**request) for request in requests))

    async def _end_with_engine(self) -> None:
        """The server would go on without it, and verl's weight transfer would wait for ever for its worker."""
        engine = getattr(self, "engine", None)  # only the first node of a replica has one
        while engine is not None:
            await asyncio.sleep(CHECK_SECONDS)
            if engine.errored:
                logger.error("vLLM's engine process is gone: ending its server")
                os._exit(1)


class ConvRecReplica(vLLMReplica):
    server: type = ConvRecHttpServer
    weights_worker: type = WeightsWorker

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(self.server)

    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        made = super().get_ray_class_with_init_args()
        made.cls = ray.remote(self.weights_worker)
        return made
