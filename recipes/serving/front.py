"""The deployments that speak HTTP: one before the models' own, and one that holds its only model itself."""

import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from recipes.serving import http
from recipes.serving.errors import ENDED
from recipes.serving.model import ModelServer
from recipes.serving.ports import keep_to_the_nodes_address
from recipes.serving.schema import KEY_VARIABLE, ServiceSettings, check_key

GONE = (RayActorError, RayServeException)  # the replica has ended, or none can be had


class Replicas:
    """A model by Ray Serve: any of its replicas. What a replica that dies has not answered another is asked once."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self.handle = handle

    async def describe(self) -> dict[str, Any]:
        return await self._ask("describe")

    async def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._ask("recommend", request)

    def recommend_stream(self, request: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        return self._ask_for_stream("recommend_stream", request)

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._ask("chat", request)

    def chat_stream(self, request: dict[str, Any]) -> AsyncIterator[str]:
        return self._ask_for_stream("chat_stream", request)

    async def put_items(self, items: list[dict[str, Any]]) -> int:
        return await self._ask("put_items", items)

    async def delete_items(self, ids: list[str | int]) -> int:
        return await self._ask("delete_items", ids)

    async def metrics(self) -> dict[str, str]:
        answers = await self.handle.broadcast("metrics").results_async(return_exceptions=True)
        found = [answer for answer in answers if not isinstance(answer, Exception)]
        return {replica: figures for answer in found for replica, figures in answer.items()}

    async def _ask(self, method: str, *arguments: Any) -> Any:
        for _ in range(2):
            try:
                return await getattr(self.handle, method).remote(*arguments)
            except GONE:
                continue
        raise ENDED

    async def _ask_for_stream(self, method: str, *arguments: Any) -> AsyncIterator[Any]:
        for _ in range(2):
            has_begun = False
            try:
                async for event in getattr(self.handle.options(stream=True), method).remote(*arguments):
                    has_begun = True
                    yield event
                return
            except GONE:
                if has_begun:  # what was sent cannot be taken back
                    break
        raise ENDED


@serve.deployment
@serve.ingress()
class Front:
    def __init__(self, settings: ServiceSettings, models: dict[str, DeploymentHandle]) -> None:
        """Raises UserError where others than this machine can reach the service and there is no key."""
        self.settings, self.models = settings, models
        self.key = service_key(settings)
        keep_to_the_nodes_address()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return http.build(self.settings, {name: Replicas(handle) for name, handle in self.models.items()}, self.key)


@serve.deployment
@serve.ingress()
class FrontWithModel:
    """The front in the process of its model, for a service of one model with one replica: two processes less."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Raises UserError as Front and ModelServer do."""
        self.settings, self.key = settings, service_key(settings)
        (model,) = settings.models
        self.model = ModelServer(model, settings.limits.max_items)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return http.build(self.settings, {self.model.name: self.model}, self.key)

    def check_health(self) -> None:
        self.model.check_health()


def service_key(settings: ServiceSettings) -> str | None:
    """Raises UserError where others than this machine can reach the service and there is no key."""
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    check_key(key, settings.loopback)
    return key
