"""What a connection may be: the bounds that uvicorn lacks, so that no stranger's sockets hold up the service."""

import json
from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from recipes.serving.errors import error_body

HEAD_SECONDS = 10  # for the head of a request, from the connection's opening; of a later one from its first byte
MOST_HEAD_BYTES = 64 << 10
MOST_HEADERS = 100
MOST_AHEAD = 16  # requests that are sent before the answer to the first; usual clients send none


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's, with bounds on a request's head, on the time it takes, on requests sent ahead, and on connections:
    at `limit_concurrency` a tenth of those whose clients are to go on ends, the longest silent first.

    What is refused here, and what is no HTTP, is answered with JSON as all errors are.
    """

    head_bytes = 0  # since the last head, or part of a body
    parsed_bytes = 0  # of the head that is read now: one packet can have all of it
    head_timer: TimerHandle | None = None
    answered: RequestResponseCycle | None = None  # `cycle` is the last that was read
    since = 0.0  # of what it waits for, in the loop's seconds

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        most = self.config.limit_concurrency
        all_now: set[BoundedProtocol] = self.connections  # type: ignore[assignment]
        if most and len(all_now) >= most:
            waiting = sorted((one for one in all_now if one.is_client_to_go_on), key=lambda one: one.since)
            for one in waiting[: len(waiting) // 10 + 1]:
                all_now.discard(one)  # at once: the loop accepts many before it closes one
                one.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_head()

    @property
    def is_client_to_go_on(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        if self.head_timer is None and not (self.cycle and self.cycle.more_body):
            self._await_head()
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        self.parsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_parsed(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_parsed(len(name) + len(value) + 4)
        if len(self.headers) > MOST_HEADERS:
            self._refuse(431, f"a request can have {MOST_HEADERS} headers")
            raise ValueError  # ends the parsing of what has come

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()
        if len(self.pipeline) > MOST_AHEAD:
            self._refuse(429, f"{MOST_AHEAD} requests can be sent ahead of answers")
            raise ValueError

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.answered = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _count_parsed(self, length: int) -> None:
        self.parsed_bytes += length
        if self.parsed_bytes > MOST_HEAD_BYTES:
            self._refuse_head()
            raise ValueError  # ends the parsing of what has come

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of a request can have {MOST_HEAD_BYTES:,} bytes")

    def _await_head(self) -> None:
        self.since = self.loop.time()
        self.head_timer = self.loop.call_later(HEAD_SECONDS, self._end_late)

    def _end_late(self) -> None:
        if self.is_client_to_go_on:
            self.transport.abort()  # close() would wait for a client that reads nothing
        else:  # the head of the next request, or an empty line behind the last, while that is answered
            self._await_head()

    def _end_head(self) -> None:
        self.head_bytes = 0
        self.since = self.loop.time()
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        if not self.transport.is_closing():
            if self.answered:
                self.answered.disconnected = True  # it writes no more
            body = json.dumps(error_body(status, message)).encode()
            head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            self.transport.close()
