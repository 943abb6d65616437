"""A service on this machine: HAProxy, Ray, Ray Serve's proxy and the application, until it is stopped."""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable

from convrec.errors import UserError
from convrec.runs import guard, supervisor
from recipes.launch.environment import init_ray, keep_to_loopback, set_thread_policy
from recipes.preflight.host import usable_cores
from recipes.serving.haproxy import HAProxy
from recipes.serving.proxy import SECONDS_VARIABLE, middlewares
from recipes.serving.schema import ServiceSettings

GONE = "the service was killed; its processes were ended"
STATUS_SECONDS = 1.0
LOOPBACK = "127.0.0.1"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 lets everything else on the machine go first
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Ray's 5 and 10 s are little on busy cores: the proxy is killed
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{middlewares.__module__}.{middlewares.__name__}",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def serve_here(settings: ServiceSettings, host: str, port: int, replicas: int, ready: Callable[[], None]) -> None:
    """Serve until KeyboardInterrupt; `ready` is called once every model answers.

    Args:
        host: address that HTTP is bound to. Ray's own ports are on the loopback, whatever it is.
        replicas: of every model.
    Raises UserError where the port is taken, and where a model's process cannot start, with its last words.
    """
    check_port(host, port)
    os.environ.pop("RAY_ADDRESS", None)
    set_thread_policy()
    keep_to_loopback()
    with guard.guarded(GONE) as folder:
        supervisor.note(temporary=str(folder))
        # Ray gives a worker one thread unless it is told; a core is left for HTTP, Ray and the scheduler of the engine
        environment = ENVIRONMENT | {"OMP_NUM_THREADS": str(max(1, usable_cores() - 1))} | guard.environment(folder)
        environment[SECONDS_VARIABLE] = str(settings.limits.timeout_seconds)
        haproxy = HAProxy(folder / "haproxy", host, port)
        environment |= haproxy.environment
        os.environ.update(environment)
        init_ray(
            address="local",
            _temp_dir=str(folder / "ray"),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": environment, "worker_process_setup_hook": "convrec.runs.guard.join"},
        )
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions
        from ray.serve.schema import LoggingConfig

        from recipes.serving.app import application

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        try:
            logs = LoggingConfig(log_level="WARNING", enable_access_log=False)
            options = HTTPOptions(host=LOOPBACK, port=haproxy.proxy)
            serve.start(proxy_location="HeadOnly", http_options=options, logging_config=logs)
            try:
                serve.run(application(settings, replicas), logging_config=logs)
            except RuntimeError as error:
                raise UserError(_why(str(error))) from None
            haproxy.start()
            ready()
            while True:
                time.sleep(STATUS_SECONDS)
                haproxy.keep_running()
        finally:
            haproxy.stop()
            ray.shutdown()


def check_port(host: str, port: int) -> None:
    """Raises UserError where nothing can be bound there."""
    if not 0 < port < 1 << 16:
        raise UserError(f"--port {port}: give one from 1 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"--host {host} --port {port}: {error.strerror}; choose another") from None


def _why(message: str) -> str:
    """The sentence of the error in Ray Serve's account of a deployment that could not start."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line]
    print(message, file=sys.stderr)
    return named[-1].partition("Error: ")[2] if named else (lines or ["the service could not start"])[-1]
