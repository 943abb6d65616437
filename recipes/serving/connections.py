"""Limits on connections that uvicorn lacks, so that idle or hostile sockets cannot block the service."""

import json
from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from recipes.serving.errors import make_error_body

HEAD_SECONDS = 10  # for a request's head: from the opening of the connection, later from its first byte
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
MAX_PIPELINED = 16  # requests sent before the first is answered; usual clients send none


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on a request's head, its time, pipelined requests, and connections.

    At `limit_concurrency`, a tenth of the connections that wait for their clients are closed, the longest silent first.
    Refused requests, and bytes that are not HTTP, are answered with JSON like all errors.
    """

    head_bytes = 0  # received since the last head or part of a body
    parsed_bytes = 0  # of the current head, since one packet can hold all of it
    head_timer: TimerHandle | None = None
    answering_cycle: RequestResponseCycle | None = None  # `cycle` is the last request that was read
    since = 0.0  # when the current wait began, in seconds of the loop

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        most = self.config.limit_concurrency
        connections: set[BoundedProtocol] = self.connections  # type: ignore[assignment]
        if most and len(connections) >= most:
            waiting = [connection for connection in connections if connection.is_waiting_for_client]
            waiting.sort(key=lambda connection: connection.since)
            for connection in waiting[: len(waiting) // 10 + 1]:
                connections.discard(connection)  # right away: the loop accepts many before it closes one
                connection.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_head()

    @property
    def is_waiting_for_client(self) -> bool:
        """Whether the client has to send the next bytes."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        if self.head_timer is None and not (self.cycle and self.cycle.more_body):
            self._await_head()
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes > MAX_HEAD_BYTES:
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
        if len(self.headers) > MAX_HEADERS:
            self._refuse(431, f"a request may have at most {MAX_HEADERS} headers")
            raise ValueError  # stops the parser

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            self._refuse(429, f"at most {MAX_PIPELINED} requests may wait for answers on a connection")
            raise ValueError

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.answering_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _count_parsed(self, length: int) -> None:
        self.parsed_bytes += length
        if self.parsed_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            raise ValueError  # stops the parser

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of a request may have at most {MAX_HEAD_BYTES:,} bytes")

    def _await_head(self) -> None:
        self.since = self.loop.time()
        self.head_timer = self.loop.call_later(HEAD_SECONDS, self._end_late)

    def _end_late(self) -> None:
        if self.is_waiting_for_client:
            self.transport.abort()  # close() would wait for a client that reads nothing
        else:  # part of the next request, or an empty line, came while a request is being answered
            self._await_head()

    def _end_head(self) -> None:
        self.head_bytes = 0
        self.since = self.loop.time()
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        if not self.transport.is_closing():
            if self.answering_cycle:
                self.answering_cycle.disconnected = True  # it must not write any more
            body = json.dumps(make_error_body(status, message)).encode()
            head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            self.transport.close()
