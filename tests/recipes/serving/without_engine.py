"""A service with everything but an engine: real HTTP, real processes of models, which answer with popular items."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.serving import processes
from recipes.serving.http import build
from recipes.serving.local import BACKLOG, bind_socket, make_server
from recipes.serving.processes import ModelProcess
from recipes.serving.replicas import Model
from recipes.serving.schema import Limits, ModelSettings, ServiceSettings
from tests.e2e.two_nodes import free_port

TARGET = """
import asyncio
from recipes.serving.metrics import ServedAges
from recipes.serving.model import ModelServer, dump_recommendations, load_recommender
from recipes.serving.processes import serve_socket

class Served(ModelServer):
    def __init__(self, settings):
        self.name = self.process = settings.name
        self.ages = ServedAges(settings)
        self.recommender = load_recommender(settings, 100, with_engine=False)
        self.recommender.follow_changes()
        self.model = self.recommender.model
        self.changing = asyncio.Lock()

    async def recommend(self, request):
        with self._convert_errors():
            return dump_recommendations(await self.recommender.apopular(**request))

    def check_health(self):
        pass

def load(settings):
    return lambda socket, tell: asyncio.run(serve_socket(socket, Served(settings[0]), lambda: tell(100)))
"""


class Opened(NamedTuple):
    address: str
    processes: list[psutil.Process]  # of the models


def write_films(file: Path, count: int, first: int = 0) -> None:
    numbers = range(first, first + count)
    table = {
        "item_id": [f"f{number}" for number in numbers],
        "title": [f"Film Number {number}" for number in numbers],
        "year": [1950 + number % 70 for number in numbers],
        "price": [1.0] * count,
        "category": ["Crime"] * count,
        "genres": [["Crime", "Drama"]] * count,
        "mentions": [1] * count,
    }
    pq.write_table(pa.table(table), file)


def build_settings(name: str, model: Path, catalog: Path, state: Path) -> ModelSettings:
    return ModelSettings(name=name, path=str(model), catalog=str(catalog), state=str(state))


@contextmanager
def served(
    models: Sequence[ModelSettings], limits: Limits, folder: Path, feedback: Path | None = None
) -> Iterator[Opened]:
    """A service of these models; folder: for logs and sockets, its own."""
    (folder / "large_target.py").write_text(TARGET)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PYTHONPATH", str(folder))
        patch.syspath_prepend(folder)
        patch.setattr(processes, "load", import_module("large_target").load)
        children = [
            stack.enter_context(
                closing(ModelProcess({}, one, 100, folder / f"{one.name}.log", folder / f"{one.name}.socket"))
            )
            for one in models
        ]
        for child in children:
            assert child.ready.result(600) == 100
        service = ServiceSettings(
            models=list(models), limits=limits, loopback=True, feedback=str(feedback) if feedback else None
        )
        app = build(service, {one.name: Model([one], limits.timeout_seconds) for one in children}, None)
        port = free_port()
        listener, server = bind_socket("127.0.0.1", port), make_server(app)
        listener.listen(BACKLOG)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        pids = [child._replica._process.pid for child in children if child._replica]
        yield Opened(f"http://127.0.0.1:{port}", [psutil.Process(pid) for pid in pids])
        server.should_exit = True
        thread.join()
