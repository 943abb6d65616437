"""verl's vLLM server listens without a key, so every request to its port is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect
from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from convrec.cpu.server import CPUHttpServer
from convrec.rollout.server import ConvRecHttpServer, RefuseRequests


def parse_options(server: type, with_prometheus: bool, **options: Any) -> Any:
    """Parse the options with which the server starts vLLM, including the user's, by vLLM's own parser."""
    one: Any = object.__new__(server)
    one.config = SimpleNamespace(prometheus=SimpleNamespace(enable=with_prometheus))
    one._preprocess_engine_kwargs(options)
    return make_arg_parser(FlexibleArgumentParser()).parse_args(build_cli_args_from_config(options))


def middleware_of(server: type, with_prometheus: bool) -> list[str]:
    return parse_options(server, with_prometheus).middleware


@pytest.mark.parametrize("server", [ConvRecHttpServer, CPUHttpServer])
def test_vllm_refuses_requests(server: type) -> None:
    assert middleware_of(server, with_prometheus=False) == ["convrec.rollout.server.RefuseRequests"]


def test_prometheus_may_still_read_metrics() -> None:
    assert middleware_of(ConvRecHttpServer, with_prometheus=True) == []


def test_no_request_reaches_the_app_but_its_lifespan_runs() -> None:
    calls = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        calls.append("start")
        yield
        calls.append("end")

    async def answer(request: Request) -> PlainTextResponse:
        calls.append(request.url.path)
        return PlainTextResponse("a list")

    async def talk(socket: WebSocket) -> None:
        calls.append("websocket")
        await socket.accept()

    routes = [Route("/v1/completions", answer, methods=["GET", "POST"]), WebSocketRoute("/v1/realtime", talk)]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(RefuseRequests)
    with TestClient(app) as client:
        assert client.get("/v1/completions").status_code == 403
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 403
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
            pass
    assert calls == ["start", "end"]


def test_a_b200_without_nvcc_gets_flash_attention(b200_without_nvcc: None) -> None:
    assert parse_options(ConvRecHttpServer, False).attention_backend == "FLASH_ATTN"
    own = parse_options(ConvRecHttpServer, False, attention_backend="TRITON_ATTN")
    assert own.attention_backend == "TRITON_ATTN"
