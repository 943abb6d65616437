"""In Ray Serve's proxy, which gets a request where no process of the service answers: how long it is held, and what is
said then.

Ray Serve's proxy imports `middlewares` (RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH). It holds a request until there is a
process; of one that dies meanwhile it says nothing, which its server makes a 500, or 503 as text.
"""

import asyncio
import contextlib
import os
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from recipes.serving.errors import ENDED, STARTING, Refused
from recipes.serving.gate import ASGIApp, Message, Receive, Scope, Send
from recipes.serving.schema import Limits

SECONDS_VARIABLE = "CONVREC_ANSWER_SECONDS"  # Limits.timeout_seconds, for the proxy's process
HEALTH_SECONDS = 5.0


def middlewares() -> list[Middleware]:
    """Those of the proxy; none in the service's own processes, which call this too and have their own limits."""
    from ray import serve  # late: it reads the environment when it is imported, which `recipes.serving.local` sets
    from ray.serve.exceptions import RayServeException

    with contextlib.suppress(RayServeException):
        serve.get_replica_context()
        return []
    seconds = float(os.environ.get(SECONDS_VARIABLE, Limits().timeout_seconds))
    return [Middleware(Held, seconds=seconds)]


class Held:
    """seconds: until the first byte of an answer; then 504, and for /health sooner 503."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self.app, self.seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def watched(message: Message) -> None:
            """Passes on what comes from the service; what the proxy says of the service itself does not."""
            nonlocal has_begun
            if message["type"] == "http.response.start" and not limit.expired() and not _is_of_proxy(message):
                has_begun = True
                limit.reschedule(None)
            if has_begun:
                await send(message)

        is_health = scope["path"].endswith("/health")  # behind a route_prefix, which is not told apart here yet
        seconds = min(self.seconds, HEALTH_SECONDS) if is_health else self.seconds
        limit = asyncio.timeout(seconds)
        with contextlib.suppress(TimeoutError):  # which the proxy may have swallowed
            async with limit:
                await self.app(scope, receive, watched)
        if has_begun:
            return
        late = Refused(504, f"no answer within {seconds:g} s, the most of this service; ask again", retry_after=5)
        refused = ENDED if not limit.expired() else STARTING if is_health else late
        await JSONResponse(refused.body, refused.status, refused.headers)(scope, receive, send)


def _is_of_proxy(start: Message) -> bool:
    is_json = Headers(raw=start["headers"]).get("content-type", "").startswith("application/json")
    return start["status"] == HTTPStatus.SERVICE_UNAVAILABLE and not is_json
