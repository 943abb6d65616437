"""The application for Ray Serve: `import_path: recipes.serving.app:build` in a file of `serve deploy`.

`args` are ServiceSettings (recipes/serving/schema.py). Replicas, autoscaling and resources are set as for any Ray Serve
deployment: `front`, which speaks HTTP, and one deployment per model under its name.
"""

import os
from collections.abc import AsyncGenerator
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from convrec.checkpoints.models import pin_checkpoint
from recipes.serving import http
from recipes.serving.heap import freeze_heap
from recipes.serving.keys import KEY_VARIABLE
from recipes.serving.model import ModelServer, load_fallback
from recipes.serving.replicas import BackendGone, Model
from recipes.serving.schema import FRONT, ModelSettings, ServiceSettings, read_service_key

HEALTH_SECONDS = 2.0


def build(args: ServiceSettings) -> Application:
    """Build the application for `serve deploy`: one replica of each deployment, unless its file says otherwise.

    A run folder is replaced by its checkpoint here, so that replicas that start later have the same model.

    Args:
        args: the `args` of the application in that file.

    Raises:
        ValueError: two models have the same name, or one has the name of the front.
    """
    names = [model.name for model in args.models]
    if len({*names, FRONT}) <= len(names):
        raise ValueError(f"models: names must be unique and other than {FRONT!r}: {', '.join(names)}")
    pinned = [model.model_copy(update={"path": pin_checkpoint(model.path)}) for model in args.models]
    args = args.model_copy(update={"models": pinned})
    models = {model.name: _deployment(model, args) for model in args.models}
    # Ray Serve lets more requests through than the limit, so that the front refuses them itself, with a reason.
    most = 2 * args.limits.max_concurrent + 64
    front = Front.options(name=FRONT, max_ongoing_requests=most, ray_actor_options={"num_cpus": 0})  # type: ignore[attr-defined]
    return front.bind(args, models)


def _deployment(model: ModelSettings, args: ServiceSettings) -> Any:
    gpus = model.tensor_parallel if ray.is_initialized() and ray.cluster_resources().get("GPU") else 0
    deployment = serve.deployment(
        ModelReplica,
        name=model.name,
        max_ongoing_requests=args.limits.max_concurrent,  # vLLM queues requests itself
        health_check_period_s=HEALTH_SECONDS,
        ray_actor_options={"num_cpus": 0, "num_gpus": gpus},
    )
    return deployment.bind(model, args.limits.max_items)


@serve.deployment
@serve.ingress()
class Front:
    """The deployment that speaks HTTP."""

    def __init__(self, settings: ServiceSettings, models: dict[str, DeploymentHandle]) -> None:
        """Prepare the front; `__serve_build_asgi_app__` builds the application.

        Args:
            settings: of the service.
            models: name -> the deployment that answers for it.

        Raises:
            UserError: other machines can reach the service and it has no key.
        """
        self.settings = settings
        self.models = models
        self.key = read_service_key(settings.loopback, settings.keys)
        bind_to_node_address()

    def __serve_build_asgi_app__(self) -> FastAPI:
        seconds = self.settings.limits.timeout_seconds
        fallbacks = {model.name: load_fallback(model, self.settings.limits) for model in self.settings.models}
        models = {
            name: Model([DeployedModel(handle)], seconds, fallbacks[name]) for name, handle in self.models.items()
        }
        app = http.build(self.settings, models, self.key)
        freeze_heap()
        return app


class ModelReplica(ModelServer):
    """A replica of a model's deployment."""

    def __init__(self, settings: ModelSettings, max_items: int) -> None:
        bind_to_node_address()
        os.environ.pop(KEY_VARIABLE, None)  # only the front needs the key
        super().__init__(settings, max_items)
        freeze_heap()


class DeployedModel:
    """A recipes.serving.replicas.Backend: any replica of a model's deployment. Calls wait until one is up."""

    # These are constants, because Ray Serve keeps track of replicas itself.
    is_up = True
    running = 0
    restarts = 0
    problem: str | None = None

    def __init__(self, handle: DeploymentHandle) -> None:
        self.handle = handle

    async def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        streams = method.endswith("_stream")
        answer = getattr(self.handle.options(stream=streams), method).remote(*arguments)
        try:
            if streams:
                async for event in answer:
                    yield event
            else:
                yield await answer
        except (RayActorError, RayServeException):
            raise BackendGone from None

    async def call_all(self, method: str) -> list[Any]:
        answers = await self.handle.broadcast(method).results_async(return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, Exception)]


def bind_to_node_address() -> None:
    """Bind this replica's gRPC port to the node's address only.

    Ray Serve binds it on every interface and unpickles what arrives there, which runs code. Must be called in the
    deployment's constructor, before the replica starts its server.
    """
    from ray.serve._private import replica

    address = ray.util.get_node_ip_address()
    host = f"[{address}]" if ":" in address else address
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, at: add_port(server, at.replace("[::]", host))
