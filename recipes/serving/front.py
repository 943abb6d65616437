"""The deployment that speaks HTTP, and its way to the models' deployments."""

import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from recipes.serving import http
from recipes.serving.errors import Refused
from recipes.serving.ports import keep_to_the_nodes_address
from recipes.serving.schema import KEY_VARIABLE, ServiceSettings, check_key

GONE = (RayActorError, RayServeException)  # the replica has ended, or none can be had
RETRY_SECONDS = 5
ENDED = Refused(503, "the model's process ended while it answered; it starts again: ask again", None, RETRY_SECONDS)


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
        return dict(answer for answer in answers if not isinstance(answer, Exception))

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
        self.key = os.environ.get(KEY_VARIABLE, "").strip() or None
        check_key(self.key, settings.loopback)
        keep_to_the_nodes_address()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return http.build(self.settings, {name: Replicas(handle) for name, handle in self.models.items()}, self.key)
