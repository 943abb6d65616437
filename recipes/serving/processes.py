"""The processes of a model on this machine, called by gRPC over Unix sockets.

Each is a process of convrec/inference/engines whose single task is to answer what arrives at its socket. A process that
ends is started again.
"""

import asyncio
import json
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc

from convrec.base.errors import UserError
from convrec.inference.engines.process import Died, Process
from recipes.serving.errors import Refused
from recipes.serving.heap import freeze_heap
from recipes.serving.model import ModelServer
from recipes.serving.replicas import BackendGone
from recipes.serving.schema import ModelSettings

SERVICE = "convrec.Model"
METHOD = "call"
EVENT = "event"
REFUSED = "refused"
FAILED = "failed"
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
FAST_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 500)]
HEALTH_SECONDS = 1.0
PAUSE_SECONDS = 1.0  # before a process restarts; doubles each time that it fails to start
MAX_PAUSE_SECONDS = 60.0


# ---- in a process of the model


def load(settings: tuple[ModelSettings, int]) -> Callable[[str, Callable[[int], None]], None]:
    """Start the engine of a model in this process.

    Args:
        settings: of the model, and the largest k.

    Returns:
        A function that serves a Unix socket forever, and calls its second argument with the largest k (0 without a
        catalog) once the socket is open.

    Raises:
        UserError: the model or its catalog cannot be served.
    """
    model = ModelServer(*settings)
    return lambda socket, tell: model.engine.run(serve_socket(socket, model, lambda: tell(model.max_items)))


async def serve_socket(socket: str, model: ModelServer, listening: Callable[[], None]) -> None:
    """Answer calls of the model's methods at a Unix socket, forever.

    Args:
        socket: path of the socket.
        model: a call names one of its methods, and has its arguments as JSON.
        listening: called once the socket is open.
    """

    async def call(request: list[Any], _: Any) -> AsyncIterator[tuple[str, Any]]:
        method, arguments = request
        try:
            answer = getattr(model, method)(*arguments)
            if hasattr(answer, "__aiter__"):
                async for event in answer:
                    yield EVENT, event
            else:
                yield EVENT, await answer
        except Refused as refused:
            yield REFUSED, refused.args
        except Exception:
            traceback.print_exc()
            yield FAILED, None

    server = grpc.aio.server(options=NO_LIMIT)
    handler = grpc.unary_stream_rpc_method_handler(call, json.loads, _as_bytes)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})])
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    freeze_heap()
    listening()
    while True:
        await asyncio.sleep(HEALTH_SECONDS)
        model.check_health()


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


# ---- in the process of the front


class ModelProcess:
    """A model's process, restarted when it ends: a recipes.serving.replicas.Backend.

    Attributes:
        ready: set when the process listens for the first time, to the largest k of its lists (0: no catalog), or to a
            UserError if it does not start.
    """

    def __init__(
        self, environment: Mapping[str, str], settings: ModelSettings, max_items: int, log: Path, socket: Path
    ) -> None:
        self.name = settings.name
        self.settings = (settings, max_items)
        self.environment = environment
        self.log = log
        self.socket = socket
        self.ready: Future[int] = Future()
        self.is_up = False
        self.running = 0
        self.restarts = 0
        self.problem: str | None = None  # why it ended before it listened; None: it did not
        self._lock = threading.Lock()
        self._replica: Process | None = None
        self._closing = threading.Event()
        self._has_listened = False  # the current process
        # the thread lives as long as the process: see convrec.inference.engines.process
        threading.Thread(target=self._run_process, name=f"convrec-{socket.name}", daemon=True).start()

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._closing.set()
            if self._replica is not None:
                self._replica.end()

    def _run_process(self) -> None:
        pause = PAUSE_SECONDS
        while (replica := self._start_process()) is not None:
            self._has_listened = False
            try:
                replica.ask(str(self.socket), self._mark_listening)
            except (Died, UserError, RuntimeError) as error:
                if not self.ready.done():
                    is_user_error = isinstance(error, UserError)
                    self.ready.set_exception(error if is_user_error else UserError("serving.process-ended", str(error)))
                    return
                # a process that has listened restarts at once; what prevents a start may take long to go away
                pause = PAUSE_SECONDS if self._has_listened else min(2 * pause, MAX_PAUSE_SECONDS)
                self._report_end(error, pause)
            finally:
                self.is_up = False
                replica.end()
            self._closing.wait(pause)

    def _report_end(self, error: Exception, pause: float) -> None:
        if self._closing.is_set():
            return
        self.restarts += 1
        reason = str(error).partition(";")[0]
        self.problem = None if self._has_listened else reason
        delay = f" in {pause:g} s" if pause > PAUSE_SECONDS else ""
        print(f"{self.name}: the process ended ({reason}) and restarts{delay}; see {self.log}", file=sys.stderr)

    def _start_process(self) -> Process | None:
        with self._lock:
            if self._closing.is_set():
                return None
            self._replica = Process(load, self.settings, self.log, self.environment)
            return self._replica

    def _mark_listening(self, max_items: int) -> None:
        self.is_up = self._has_listened = True
        self.problem = None
        if not self.ready.done():
            self.ready.set_result(max_items)

    async def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        call = self._ask([method, arguments], wait_for_ready=True)
        self.running += 1
        try:
            async for kind, value in call:
                if kind == REFUSED:
                    raise Refused(*value)
                if kind == FAILED:
                    raise RuntimeError(f"{self.name} failed in {method}; see {self.log}")
                yield value
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            self.is_up = False
            raise BackendGone from None
        finally:
            self.running -= 1
            call.cancel()

    async def call_all(self, method: str) -> list[Any]:
        with suppress(BackendGone):
            return [answer async for answer in self.call(method)]
        return []

    @cached_property
    def _ask(self) -> Any:
        channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=[*NO_LIMIT, *FAST_RECONNECT])
        return channel.unary_stream(f"/{SERVICE}/{METHOD}", _as_bytes, json.loads)
