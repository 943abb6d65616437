"""ASGI middleware in front of all routes: checks of host, key, size, concurrency and shutdown. No Ray."""

import asyncio
import re
import time
from collections.abc import Collection

from starlette._utils import get_route_path  # as the router does: the two must agree on the path
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recipes.serving.drain import Drain, Stopping
from recipes.serving.errors import FAILED, Refused
from recipes.serving.keys import Keys
from recipes.serving.metrics import Metrics
from recipes.serving.schema import Limits, is_loopback

_HOST = re.compile(
    r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?"
)  # the Host header: name or address, then a port
OPEN = ("/", "/page.css", "/page.js", "/docs", "/health")  # served without a key: the page asks for it
CLIENT_CLOSED = 499  # nginx's status for a client that has disconnected; only /metrics shows it


class Gate:
    """ASGI middleware around the whole application.

    A loopback service refuses names in `Host` other than localhost and loopback addresses: a foreign page whose name
    resolves to 127.0.0.1 would pass the browser's origin check (DNS rebinding). Bodies are read here, whole and up to a
    limit, before the request counts as running, so that slow senders do not use up the limit of concurrent requests.
    An answer that does not wait for the body (a missing key, a path without body) closes the connection.
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
        """Wrap an application.

        Args:
            app: the application.
            limits: on bodies, running requests and time.
            keys: that requests may need.
            loopback: whether only this machine may call the service.
            metrics: count all answers, also refusals.
            drain: counts running requests.
            takes_body: paths of the routes that read a body.
        """
        self.app = app
        self.limits = limits
        self.keys = keys
        self.loopback = loopback
        self.metrics = metrics
        self.drain = drain
        self.takes_body = takes_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the router refuses websockets: there are none
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        status = CLIENT_CLOSED
        headers = Headers(scope=scope)
        is_read = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

        async def receive_and_track() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body")
            return message

        async def send_and_count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # The next request could not be told from an unread body, and a service that stops takes no more.
                if not is_read or self.drain.began_at is not None:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._handle(scope, receive_and_track, send_and_count)
        except Refused as refused:
            await JSONResponse(refused.body, refused.status, refused.headers)(scope, receive, send_and_count)
        except ClientDisconnect:
            pass
        except Exception:  # the server logs it
            if status == CLIENT_CLOSED:  # nothing was sent yet
                await JSONResponse(FAILED.body, FAILED.status)(scope, receive, send_and_count)
            raise
        finally:
            self.metrics.count(get_route_path(scope), scope["method"], status, time.monotonic() - start)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) > 1:  # a proxy in front may have checked the other one
            raise Refused(400, "two Host headers; send one")
        host = _HOST.fullmatch(headers.get("host", "localhost"))
        if self.loopback and not (host and is_loopback(host["v6"] or host["name"] or "")):
            raise Refused(403, "this service answers this machine only: call it as localhost or by its address")
        path = get_route_path(scope)
        if self.keys.is_required and path not in OPEN:
            self.keys.check(headers.get("authorization", ""), scope["method"], path)
        if self.drain.began_at is not None and path != "/metrics":
            raise Stopping
        if scope["method"] in ("GET", "HEAD", "OPTIONS") or path not in self.takes_body:
            await self.app(scope, receive, send)
            return
        body = await self._read_body(Request(scope, receive))
        running = self.drain.running
        if running >= self.limits.max_concurrent:
            raise Refused(
                429, f"{running} requests are being answered, the limit of this service; try again", retry_after=1
            )
        self._add_running(1)
        try:
            await self._answer(scope, body, receive, send)
        finally:
            self._add_running(-1)

    def _add_running(self, requests: int) -> None:
        self.drain.running += requests
        self.metrics.running.set(self.drain.running)

    async def _read_body(self, request: Request) -> bytes:
        """Read the body, up to the limits of size and time. Raises Refused, and ClientDisconnect."""
        most = self.limits.max_body_bytes
        length = request.headers.get("content-length", "0")
        too_large = Refused(413, f"the body is larger than {most:,} bytes, the limit of this service")
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
            raise Refused(408, f"the body did not arrive within {seconds:g} s, the limit of this service") from None

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Call the application with the body as one message.

        The call is cancelled if the client disconnects, or if the service is cut off before the answer has begun. An
        answer that has begun is a stream, which ends itself.
        """
        disconnect = asyncio.ensure_future(receive())  # nothing else can arrive now
        cut = asyncio.ensure_future(self.drain.wait_for_cut())
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        has_begun = False

        async def replay() -> Message:
            return messages.pop() if messages else await asyncio.shield(disconnect)

        async def send_and_track(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        answer = asyncio.ensure_future(self.app(scope, replay, send_and_track))
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
