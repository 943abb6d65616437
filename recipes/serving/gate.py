"""What every request passes before it reaches a route: host, key, size, how many at once, the service's end. Pure ASGI,
no Ray."""

import asyncio
import re
import time
from collections.abc import Collection

from starlette._utils import get_route_path  # the router's own: the two must mean one path
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recipes.serving.drain import Drain, Stopping
from recipes.serving.errors import FAILED, Refused
from recipes.serving.keys import Keys
from recipes.serving.metrics import Metrics
from recipes.serving.schema import Limits, is_loopback

_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?")  # the header: name or address, then a port
OPEN = ("/", "/page.css", "/page.js", "/docs", "/health")  # without the key: the page asks for it
CLIENT_CLOSED = 499  # nginx's status of a client that has gone; nobody reads it but /metrics


class Gate:
    """ASGI middleware around the whole application.

    On a loopback service a name in `Host` other than localhost or an address of the loopback is refused: a page of a
    stranger whose name points at 127.0.0.1 would pass the browser's check of origins. A body is read here, whole and
    bounded, before the request takes one of the places, so that slow senders hold none. What is answered before its
    body was there ends its connection: a missing key, a path that takes no body.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        keys: Keys,
        loopback: bool,
        metrics: Metrics,
        drain: Drain,
        takes_body: Collection[str],
    ) -> None:
        """takes_body: the paths of routes that read a body."""
        self.app = app
        self.limits = limits
        self.keys = keys
        self.loopback = loopback
        self.metrics = metrics
        self.drain = drain
        self.takes_body = takes_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # of websockets there is none: the router refuses them
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        status = CLIENT_CLOSED
        headers = Headers(scope=scope)
        is_read = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

        async def watched_receive() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body")
            return message

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # the rest of a body would keep the connection, and so would a client of a service that stops
                if not is_read or self.drain.began_at is not None:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._pass(scope, watched_receive, watched)
        except Refused as refused:
            await JSONResponse(refused.body, refused.status, refused.headers)(scope, receive, watched)
        except ClientDisconnect:
            pass
        except Exception:  # the server's log has it
            if status == CLIENT_CLOSED:  # nothing was sent
                await JSONResponse(FAILED.body, FAILED.status)(scope, receive, watched)
            raise
        finally:
            self.metrics.count(get_route_path(scope), scope["method"], status, time.monotonic() - start)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) > 1:  # a proxy in front may have read the other one
            raise Refused(400, "two Host headers; send one")
        host = _HOST.fullmatch(headers.get("host", "localhost"))
        if self.loopback and not (host and is_loopback(host["v6"] or host["name"] or "")):
            raise Refused(403, "this service is for this machine alone: call it localhost, or by its address")
        path = get_route_path(scope)
        if self.keys.are_asked_for and path not in OPEN:
            self.keys.check(headers.get("authorization", ""), scope["method"], path)
        if self.drain.began_at is not None and path != "/metrics":
            raise Stopping
        if scope["method"] in ("GET", "HEAD", "OPTIONS") or path not in self.takes_body:
            await self.app(scope, receive, send)
            return
        body = await self._body(Request(scope, receive))
        running = self.drain.running
        if running >= self.limits.max_concurrent:
            raise Refused(
                429, f"{running} requests are being answered, the most of this service; ask again", retry_after=1
            )
        self._add_running(1)
        try:
            await self._answer(scope, body, receive, send)
        finally:
            self._add_running(-1)

    def _add_running(self, requests: int) -> None:
        self.drain.running += requests
        self.metrics.running.set(self.drain.running)

    async def _body(self, request: Request) -> bytes:
        """Raises ClientDisconnect, too."""
        most = self.limits.max_body_bytes
        length = request.headers.get("content-length", "0")
        too_large = Refused(413, f"the body is larger than {most:,} bytes, the most of this service")
        if length.isdigit() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.timeout_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
            return bytes(body)
        except TimeoutError:
            seconds = self.limits.timeout_seconds
            raise Refused(408, f"the body was not there after {seconds:g} s, the most of this service") from None

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Give the application the body as one message. It is cancelled where the client goes meanwhile, and where the
        service ends before an answer has begun; what has begun is a stream, which ends itself then."""
        disconnect = asyncio.ensure_future(receive())  # all that can come now
        cut = asyncio.ensure_future(self.drain.wait_for_cut())
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        has_begun = False

        async def replayed() -> Message:
            return messages.pop() if messages else await asyncio.shield(disconnect)

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        answer = asyncio.ensure_future(self.app(scope, replayed, watched_send))
        try:
            await asyncio.wait((answer, disconnect, cut), return_when=asyncio.FIRST_COMPLETED)
            if cut.done() and has_begun:
                await asyncio.wait((answer, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            cut.cancel()
            is_whole = answer.done()
            if is_whole:
                disconnect.cancel()
            else:
                answer.cancel()
                await asyncio.wait((answer,))
        if not is_whole:
            raise ClientDisconnect if disconnect.done() else Stopping
        answer.result()
