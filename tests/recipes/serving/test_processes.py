"""Models in processes of their own, real ones with a model that needs no engine: asked, killed and started again."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from convrec.base.errors import UserError
from recipes.serving import processes as module
from recipes.serving.errors import Refused
from recipes.serving.http import _check_model
from recipes.serving.processes import ModelProcess
from recipes.serving.replicas import Model
from recipes.serving.schema import ModelSettings
from tests.recipes.serving.conftest import Films

TARGET = """
import asyncio, gc, os
from convrec.base.errors import UserError
from recipes.serving.errors import Refused
from recipes.serving.http import _check_model
from recipes.serving.processes import serve_socket

class Films:
    cancelled = waiting = 0

    async def describe(self):
        told = {"cancelled": self.cancelled, "waiting": self.waiting, "frozen_objects": gc.get_freeze_count()}
        return {"pid": os.getpid(), **told}

    async def refuse(self, field):
        raise Refused(400, "no", field)

    async def fail(self):
        raise ValueError("out of paper")

    async def wait(self, seconds):
        Films.waiting += 1
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            Films.cancelled += 1
            raise

    async def items(self, count):
        for number in range(count):
            yield ["item", number]
            await asyncio.sleep(0.05)

    async def metrics(self):
        return {str(os.getpid()): "figures"}

    def check_health(self):
        pass

def load(settings):
    if settings[0].path == "missing" or os.path.exists(os.path.join(settings[0].path, "gone")):
        raise UserError("model.missing", "model missing: no such folder")
    return lambda socket, tell: asyncio.run(serve_socket(socket, Films(), lambda: tell(17)))
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Model]]:
    (tmp_path / "films_target.py").write_text(TARGET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "load", import_module("films_target").load)
    processes: list[ModelProcess] = []

    def start(count: int, path: str = "here") -> Model:
        for number in range(count):
            log, socket = tmp_path / f"{number}.log", tmp_path / f"{number}.socket"
            processes.append(ModelProcess({}, ModelSettings(name="films", path=path), 100, log, socket))
        for one in processes:
            assert one.ready.result(60) == 17  # the largest k
        return Model(processes, 600)

    yield start
    for one in processes:
        one.close()


async def pid_of(model: Model) -> int:
    return (await model.ask("describe"))["pid"]


def test_answers_streams_refusals_and_failures_come_through(started: Callable[..., Model], tmp_path: Path) -> None:
    async def scenario() -> None:
        model = started(1)
        assert await pid_of(model) != os.getpid()
        assert [event async for event in model.stream("items", 3)] == [["item", 0], ["item", 1], ["item", 2]]
        with pytest.raises(Refused) as refused:
            await model.ask("refuse", "k")
        assert (refused.value.status, refused.value.param) == (400, "k")
        with pytest.raises(RuntimeError, match=r"films failed in fail; see .*0\.log"):
            await model.ask("fail")
        assert "ValueError: out of paper" in (tmp_path / "0.log").read_text()
        left = asyncio.ensure_future(model.ask("wait", 600))
        async with asyncio.timeout(60):
            while not (await model.ask("describe"))["waiting"]:
                await asyncio.sleep(0.01)
            left.cancel()
            while not (await model.ask("describe"))["cancelled"]:
                await asyncio.sleep(0.01)
        assert list((await model.metrics()).values()) == ["figures"]

    asyncio.run(scenario())


def test_loaded_objects_are_frozen_out_of_garbage_collection(started: Callable[..., Model]) -> None:
    described = asyncio.run(started(1).ask("describe"))
    assert described["frozen_objects"] > 10_000  # the imports alone


def test_killed_process_fails_its_requests_and_new_ones_wait(
    started: Callable[..., Model], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        model = started(1)
        pid = await pid_of(model)
        answering = [asyncio.ensure_future(model.ask("wait", 30)) for _ in range(3)]
        await asyncio.sleep(0.5)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        errors = await asyncio.gather(*answering, return_exceptions=True)
        assert time.monotonic() - begin < 20  # they would have waited for 30
        assert [str(error).partition(";")[0] for error in errors] == ["the model's process ended while answering"] * 3
        assert len(set(map(id, errors))) == 3  # a shared one would keep all requests
        await asyncio.sleep(0.5)  # a request in the moment of the end would be refused as well
        assert await pid_of(model) != pid

    asyncio.run(scenario())
    assert "films: the process ended (exit status -9) and restarts; see " in capsys.readouterr().err


def test_lost_requests_are_retried_elsewhere_but_streams_are_not(started: Callable[..., Model]) -> None:
    async def scenario() -> None:
        model = started(2)
        first = await pid_of(model)
        events = model.stream("items", 200)
        assert await anext(events) == ["item", 0]
        second = await pid_of(model)  # the one that has less to do
        assert {int(pid) for pid in await model.metrics()} == {first, second}
        asked = asyncio.ensure_future(model.ask("wait", 1))
        await asyncio.sleep(0.3)
        os.kill(second, signal.SIGKILL)
        assert await asked is None
        os.kill(first, signal.SIGKILL)
        with pytest.raises(Refused, match="ended while answering"):
            async for _ in events:
                pass

    asyncio.run(scenario())


def test_failed_restarts_back_off_and_health_gives_the_reason(
    started: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(module, "MAX_PAUSE_SECONDS", 0.2)

    async def scenario() -> None:
        model = started(1, str(tmp_path))
        assert (model.problem, model.restarts) == (None, 0)
        (tmp_path / "gone").touch()
        os.kill(await pid_of(model), signal.SIGKILL)
        async with asyncio.timeout(600):
            while model.restarts < 4:
                await asyncio.sleep(0.05)
            assert model.problem == "model missing: no such folder"
            assert await _check_model(model) == "the model's process does not start: model missing: no such folder"
            (tmp_path / "gone").unlink()
            while model.problem:
                await asyncio.sleep(0.05)
            await pid_of(model)
        assert await _check_model(model) == "ok"

    asyncio.run(scenario())
    printed = capsys.readouterr().err
    for words in ("restarts;", "restarts in 0.1 s", "restarts in 0.2 s"):
        assert words in printed
    assert "0.4" not in printed


def test_what_health_says_names_files_without_their_folders(tmp_path: Path) -> None:
    model = Model([Films()], 1)
    model.backends[0].problem = "catalog /srv/shop/books.parquet: no such file"
    assert model.problem == "catalog books.parquet: no such file"


def test_a_model_that_cannot_be_loaded_keeps_its_error(started: Callable[..., Model]) -> None:
    with pytest.raises(UserError, match="model missing"):
        started(1, "missing")
