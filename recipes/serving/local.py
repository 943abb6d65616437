"""A service on this machine: HTTP in this process, each model in processes of its own."""

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
from convrec.inference.engines.placement import make_replica_environments
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
from recipes.serving.schema import ServiceSettings, read_service_key

LOG = "_http.log"  # no model's name starts with an underscore
LOG_BYTES = 16 << 20
GONE = "the service was killed; its processes have been stopped"
BACKLOG = 2048  # connections waiting to be accepted
MAX_CONNECTIONS = 8192
READ_SECONDS = 30  # within which a client must read some of what it is sent
IDLE_SECONDS = 60  # longer than clients keep idle connections, so that none sends a request on a closing one
MaxItems: TypeAlias = Mapping[str, int]  # model -> largest k of its lists, 0 without a catalog
LAST_SECONDS = 1  # for running answers to end when the service is cut off


def serve_here(
    settings: ServiceSettings, host: str, port: int, replicas: int, logs: Path, ready: Callable[[MaxItems], None]
) -> None:
    """Serve until KeyboardInterrupt.

    Args:
        settings: of the service.
        host: address to bind.
        port: to bind.
        replicas: number of processes for each model.
        logs: folder for the logs of the models' processes, and of this one (LOG).
        ready: called once all models answer, with the largest k of each.

    Raises:
        UserError: The port is not available, or a model's process cannot start; the message ends with its log.
    """
    set_up_process()
    key = read_service_key(settings.loopback, settings.keys)
    os.environ.pop(KEY_VARIABLE, None)  # the models' processes do not need the key
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logs.mkdir(parents=True, exist_ok=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection is an open file
    log_file = RotatingFileHandler(logs / LOG, maxBytes=LOG_BYTES, backupCount=1)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", handlers=[logging.StreamHandler(), log_file])
    with closing(bind_socket(host, port)) as listener, guard.guarded(GONE) as folder, ExitStack() as stack:
        supervisor.note(temporary=str(folder))
        started = _start_processes(settings, replicas, logs, folder)
        processes = [stack.enter_context(closing(process)) for process in started]
        fallbacks = {model.name: load_fallback(model, settings.limits) for model in settings.models}
        max_items = {process.name: process.ready.result() for process in processes}
        seconds = settings.limits.timeout_seconds
        names = [model.name for model in settings.models]
        models = {
            name: Model([process for process in processes if process.name == name], seconds, fallbacks[name])
            for name in names
        }
        drain = Drain()
        app = http.build(settings, models, key, drain)
        freeze_heap()
        listener.listen(BACKLOG)
        ready(max_items)
        make_server(app, drain, settings.limits.drain_seconds).run(sockets=[listener])


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which drains when it is signalled to stop.

    It refuses new requests, and ends when the running ones are answered, or after `drain_seconds`. A second signal ends
    it at once.
    """

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
    """Make the server of an application, with its limits on connections.

    Args:
        app: the application.
        drain: the one that the application was built with; None for an application without one.
        drain_seconds: how long running requests may take once the service stops.
    """
    options: dict[str, Any] = {"timeout_keep_alive": IDLE_SECONDS, "timeout_graceful_shutdown": LAST_SECONDS}
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # the loop accepts a whole backlog before it closes anything: connections take at most half of the files
    options |= {"limit_concurrency": min(MAX_CONNECTIONS, files // 2), "backlog": min(BACKLOG, files // 4)}
    options |= {"http": BoundedProtocol, "ws": "none", "access_log": False, "log_level": "warning", "log_config": None}
    return DrainingServer(uvicorn.Config(app, **options), drain or Drain(), drain_seconds)


def _start_processes(settings: ServiceSettings, replicas: int, logs: Path, folder: Path) -> Iterator[ModelProcess]:
    """Start a process for each replica of each model. folder: for this service only."""
    planned = [(model, index) for model in settings.models for index in range(replicas)]
    # One core is left for HTTP and the engine's scheduler.
    environment = guard.environment(folder) | {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) - 1))}
    try:
        environments = make_replica_environments(len(planned), settings.models[0].tensor_parallel, environment)
    except UserError as error:
        raise UserError(error.code, f"{len(settings.models)} models with {replicas} replicas each: {error}") from None
    for number, (own, (model, index)) in enumerate(zip(environments, planned, strict=True)):
        log = logs / f"{model.name}-{index}.log" if index else logs / f"{model.name}.log"
        yield ModelProcess(own, model, settings.limits.max_items, log, folder / f"{number}.socket")


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a socket, which does not listen yet.

    Args:
        host: an IPv4 or IPv6 address, or a name that has an IPv4 address.
        port: from 1 to 65535.

    Raises:
        UserError: the port is not a port, or the address cannot be bound.
    """
    if not 0 < port < 1 << 16:
        raise UserError("serving.invalid-port", f"--port {port}: must be from 1 to 65535")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # inherited by accepted connections: the kernel closes one whose client does not read
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, READ_SECONDS * 1000)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(
            "serving.unavailable-address", f"--host {host} --port {port}: {error.strerror}. Choose another one."
        ) from None
    return listener
