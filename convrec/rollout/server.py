"""verl's vLLM rollout server, which ends when its engine dies, so that Ray reports it to all waiting callers."""

import asyncio
import logging
import os
from typing import Any

import ray
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.sampling_params import RequestOutputKind

from convrec.base.gpus import attention_settings
from convrec.runs.guard import move_socket_to_run_folder

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0


class WorkerExtension(vLLMColocateWorkerExtension):
    """Receives weights in vLLM's process."""

    def _get_zmq_handle(self) -> str:
        return move_socket_to_run_folder(super()._get_zmq_handle())


class WeightsWorker(CheckpointEngineWorker):
    """Receives the weights for a rollout on separate devices (asynchronous training)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_adapter.zmq_handle = move_socket_to_run_folder(self.server_adapter.zmq_handle)


class RefuseRequests:
    """ASGI middleware that refuses every request, because verl's vLLM server listens without a key.

    The processes of a run call the server through Ray. Every user of the machine, or of the cluster's network, can
    reach its port, and would use the GPU and the cache that the rollout needs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await Response(status_code=403)(scope, receive, send)
        else:
            await send({"type": "websocket.close"})


class ConvRecHttpServer(vLLMHttpServer):
    extension: type = WorkerExtension

    def _get_worker_extension_cls(self) -> str:
        return f"{self.extension.__module__}.{self.extension.__qualname__}"

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        if not self.config.prometheus.enable:  # Prometheus reads the server's /metrics
            engine_kwargs["middleware"] = [f"{RefuseRequests.__module__}.{RefuseRequests.__qualname__}"]
        if not {"attention_backend", "attention_config"} & engine_kwargs.keys():
            engine_kwargs |= attention_settings()

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        await super().launch_server(*args, **kwargs)
        self.end_with_engine = asyncio.create_task(self._end_with_engine())

    async def generate_group(self, requests: list[dict[str, Any]]) -> list[TokenOutput]:
        """Call `generate` for each request, in one call between processes; the outputs have token ids, no text."""
        output_params = {"detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
        for request in requests:
            request["sampling_params"] |= output_params
        return await asyncio.gather(*(self.generate(**request) for request in requests))

    async def _end_with_engine(self) -> None:
        """End the server if its engine dies: otherwise verl's weight transfer would wait forever for the worker."""
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
        ray_class = super().get_ray_class_with_init_args()
        ray_class.cls = ray.remote(self.weights_worker)
        return ray_class
