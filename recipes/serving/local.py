"""A service on this machine: HTTP in this process, every model in processes of its own, until it is stopped."""

import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import uvicorn
from fastapi import FastAPI

from convrec.base.errors import UserError
from convrec.inference.engines.placement import environments_here
from convrec.runs import guard, supervisor
from recipes.launch.environment import set_up_process
from recipes.serving import http
from recipes.serving.connections import BoundedProtocol
from recipes.serving.drain import Drain
from recipes.serving.heap import freeze_heap
from recipes.serving.keys import KEY_VARIABLE
from recipes.serving.model import load_fallback
from recipes.serving.processes import ModelProcess
from recipes.serving.replicas import Model
from recipes.serving.schema import ServiceSettings, service_key

LOG = "_http.log"  # no model's log can have that name
LOG_BYTES = 16 << 20
GONE = "the service was killed; its processes were ended"
BACKLOG = 2048  # connections that wait to be accepted
MOST_CONNECTIONS = 8192
READ_SECONDS = 30  # in which a client takes some of what it is sent
IDLE_SECONDS = 60  # of a connection; clients give theirs up sooner, so that none asks on one that is just closed
MaxItems: TypeAlias = Mapping[str, int]  # model -> the largest k of its lists, 0 without a catalog
LAST_SECONDS = 1  # that answers have to end when the service is stopped


def serve_here(
    settings: ServiceSettings, host: str, port: int, replicas: int, logs: Path, ready: Callable[[MaxItems], None]
) -> None:
    """Serve until KeyboardInterrupt; `ready` is called once every model answers, with the largest k of each.

    host: address that HTTP is bound to. replicas: of every model. logs: folder for what the models' processes say, and
    what goes wrong in this one: LOG. Raises UserError where the port is taken, and where a model's process cannot
    start, with its last words.
    """
    set_up_process()
    key = service_key(settings.loopback, settings.keys)
    os.environ.pop(KEY_VARIABLE, None)  # the models' processes need none
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logs.mkdir(parents=True, exist_ok=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a file
    kept = RotatingFileHandler(logs / LOG, maxBytes=LOG_BYTES, backupCount=1)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", handlers=[logging.StreamHandler(), kept])
    with closing(bound(host, port)) as listener, guard.guarded(GONE) as folder, ExitStack() as opened:
        supervisor.note(temporary=str(folder))
        processes = [opened.enter_context(closing(one)) for one in _started(settings, replicas, logs, folder)]
        late = {model.name: load_fallback(model, settings.limits) for model in settings.models}
        max_items = {process.name: process.ready.result() for process in processes}
        seconds = settings.limits.timeout_seconds
        names = [model.name for model in settings.models]
        models = {name: Model([one for one in processes if one.name == name], seconds, late[name]) for name in names}
        drain = Drain()
        app = http.build(settings, models, key, drain)
        freeze_heap()
        listener.listen(BACKLOG)
        ready(max_items)
        make_server(app, drain, settings.limits.drain_seconds).run(sockets=[listener])


class DrainingServer(uvicorn.Server):
    """A signal to stop has new requests refused, and the server ends when those that run have their answers, or after
    `drain_seconds`. A second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, drain: Drain, drain_seconds: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._drain_seconds = drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain.began_at is not None:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        self._drain.begin()

    async def on_tick(self, counter: int) -> bool:
        if self._drain.is_over(self._drain_seconds):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain.cut(LAST_SECONDS)
        await super().shutdown(sockets)


def make_server(app: FastAPI, drain: Drain | None = None, drain_seconds: float = 0.0) -> uvicorn.Server:
    """drain: of the application."""
    options: dict[str, Any] = {"timeout_keep_alive": IDLE_SECONDS, "timeout_graceful_shutdown": LAST_SECONDS}
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # the loop accepts a whole backlog before it closes anything: with half the files as connections that has its room
    options |= {"limit_concurrency": min(MOST_CONNECTIONS, files // 2), "backlog": min(BACKLOG, files // 4)}
    options |= {"http": BoundedProtocol, "ws": "none", "access_log": False, "log_level": "warning", "log_config": None}
    return DrainingServer(uvicorn.Config(app, **options), drain or Drain(), drain_seconds)


def _started(settings: ServiceSettings, replicas: int, logs: Path, folder: Path) -> Iterator[ModelProcess]:
    """A process for each replica of each model, which loads it. folder: of this service alone."""
    planned = [(model, index) for model in settings.models for index in range(replicas)]
    # a core is left for HTTP and the scheduler of the engine
    environment = guard.environment(folder) | {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) - 1))}
    try:
        environments = environments_here(len(planned), settings.models[0].tensor_parallel, environment)
    except UserError as error:
        raise UserError(f"{len(settings.models)} models, each with {replicas} replicas: {error}") from None
    for number, (own, (model, index)) in enumerate(zip(environments, planned, strict=True)):
        log = logs / f"{model.name}-{index}.log" if index else logs / f"{model.name}.log"
        yield ModelProcess(own, model, settings.limits.max_items, log, folder / f"{number}.socket")


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, which does not listen yet. Raises UserError where nothing can be bound there."""
    if not 0 < port < 1 << 16:
        raise UserError(f"--port {port}: give one from 1 to 65535")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # what is accepted inherits it: the kernel ends the connection of a client that does not read
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, READ_SECONDS * 1000)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"--host {host} --port {port}: {error.strerror}; choose another") from None
    return listener
