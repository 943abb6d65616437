"""A dead process interrupts the main thread where it waits. tests/e2e/test_deaths.py kills real ones."""

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RaySystemError, RayTaskError

from convrec.base.errors import NoProgress, ProcessLost
from convrec.runs import guard
from convrec.runs.phases import Phases
from convrec.training.watch import liveness, nodes

OF_RAYS_MONITOR = (
    "1 worker(s) were killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.0.3, ID: ab12) was 30.11GB used / 31.50GB limit (0.956)"
)


class Actors:
    """Stands for Ray: which actors answer, which are busy, which are dead, and the node of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gcs_port: int) -> None:
        self.state = {"training worker 0": "busy", "vLLM server 0.0": "alive"}
        self.nodes: dict[str, str] = {}
        context = SimpleNamespace(gcs_address=f"127.0.0.1:{gcs_port}")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(ray._private.state, "actors", self.describe)
        monkeypatch.setattr(ray, "wait", lambda refs, timeout: ([r for r in refs if self.state[r] != "busy"], []))
        monkeypatch.setattr(ray, "get", self.get)
        monkeypatch.setattr(liveness, "CHECK_SECONDS", 0.01)

    def describe(self, name: str) -> dict[str, Any]:
        return {"Address": {"NodeID": self.nodes.get(name, "aaaaaaaaaa")}}

    def get(self, name: str) -> None:
        errors = {
            "dead": ActorDiedError(),
            "not started": ActorDiedError(RayTaskError("f", "a traceback\nValueError: no GPU", ValueError())),
            "killed by Ray": OutOfMemoryError(OF_RAYS_MONITOR),
            "unreachable": ActorUnavailableError("connection reset", None),
            "lost object": RaySystemError("no"),
        }
        if self.state[name] in errors:
            raise errors[self.state[name]]

    def handles(self) -> dict[str, Any]:
        def handle(name: str) -> Any:
            ready = SimpleNamespace(remote=lambda: name)
            return SimpleNamespace(__ray_ready__=ready, _actor_id=SimpleNamespace(hex=lambda: name))

        return {name: handle(name) for name in self.state}


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Actors]:
    handler = signal.getsignal(signal.SIGUSR2)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as gcs:  # nobody accepts what asks whether it is there
        yield Actors(monkeypatch, gcs.getsockname()[1])
    signal.signal(signal.SIGUSR2, handler)


def test_a_busy_process_is_no_dead_one_and_a_dead_one_is_named(actors: Actors) -> None:
    watch = liveness.Watch(actors.handles)
    assert watch.find_lost_actor() == ""  # sends the requests
    assert watch.find_lost_actor() == ""
    actors.state["vLLM server 0.0"] = "dead"
    assert watch.find_lost_actor() == "vLLM server 0.0"
    assert str(watch.find_problem()) == "the vLLM server 0.0 is gone (killed, or out of memory); the log may say why"


def test_process_killed_by_ray_for_memory_is_named_with_usage(actors: Actors) -> None:
    actors.state["vLLM server 0.0"] = "killed by Ray"
    watch = liveness.Watch(actors.handles)
    watch.find_lost_actor()  # sends the requests
    used = "30.11 GB of the node's 31.50 GB were in use"
    assert str(watch.find_problem()).startswith(f"the vLLM server 0.0 is gone (killed by Ray's memory monitor: {used})")


def test_a_process_whose_start_failed_is_named_with_its_error(actors: Actors) -> None:
    actors.state["vLLM server 0.0"] = "not started"
    watch = liveness.Watch(actors.handles)
    watch.find_lost_actor()  # sends the requests
    assert str(watch.find_problem()) == "the vLLM server 0.0 is gone (ValueError: no GPU); the log may say why"


@pytest.mark.parametrize("trouble", ["unreachable", "lost object"])
def test_one_that_is_not_reached_is_asked_again_but_not_for_ever(
    actors: Actors, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    now = 0.0
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now)
    watch = liveness.Watch(actors.handles)
    watch.find_lost_actor()  # sends the requests
    actors.state["vLLM server 0.0"] = trouble
    assert watch.find_lost_actor() == ""
    actors.state["vLLM server 0.0"] = "alive"
    assert [watch.find_lost_actor() for _ in range(3)] == ["", "", ""]

    now = 1000.0
    actors.state["vLLM server 0.0"] = trouble
    assert [watch.find_lost_actor() for _ in range(3)] == ["", "", ""]  # it was there in between
    now += liveness.UNREACHABLE_SECONDS + 1
    assert "vLLM server 0.0" in [watch.find_lost_actor() for _ in range(2)]


def wait_behind(cause: Callable[[], object]) -> None:
    """The interrupt may come at once."""
    cause()
    time.sleep(30)


def test_the_main_thread_is_interrupted_while_it_waits(actors: Actors) -> None:
    watch = liveness.Watch(actors.handles)
    watch.start()
    try:
        time.sleep(0.1)
        with pytest.raises(ProcessLost, match="the training worker 0 is gone"):
            wait_behind(lambda: actors.state.update({"training worker 0": "dead"}))
    finally:
        watch.stopped.set()


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_c_code_makes_of_a_loss_is_told_as_the_loss(actors: Actors, is_lost: bool) -> None:
    watch = liveness.Watch(actors.handles)
    expected = pytest.raises(ProcessLost, match="worker 0 is gone") if is_lost else pytest.raises(SystemError)
    with expected, liveness.watch_processes(watch):
        actors.state["training worker 0"] = "dead" if is_lost else "alive"
        try:
            time.sleep(30 if is_lost else 0.1)
        except ProcessLost as error:
            raise SystemError("returned a result with an exception set") from error
        raise SystemError("of another kind")


def test_a_loss_that_another_process_reports_is_named(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "CHECK_SECONDS", 60)  # the report is first
    actors.state["training worker 0"] = "dead"
    expected = pytest.raises(ProcessLost, match="the training worker 0 is gone")
    with expected, liveness.watch_processes(liveness.Watch(actors.handles)):
        raise ProcessLost("2 prompts could not be sampled or scored: a process of the run is gone")


def test_a_driver_that_does_not_get_away_is_ended(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "SECONDS_TO_STOP", 0.05)
    actors.state["training worker 0"] = "dead"

    def drive() -> None:
        try:
            with pytest.raises(ProcessLost):
                wait_behind(liveness.Watch(actors.handles).start)
            time.sleep(60)  # stands for a close that waits for the dead
        finally:
            os._exit(99)

    driver = multiprocessing.get_context("fork").Process(target=drive)
    driver.start()
    driver.join()
    assert driver.exitcode == 1


def test_a_run_that_is_over_is_not_interrupted(actors: Actors) -> None:
    watch = liveness.Watch(actors.handles)
    watch.start()
    watch.stopped.set()
    actors.state["training worker 0"] = "dead"
    time.sleep(0.1)


def test_endless_phase_ends_the_run_and_names_the_culprit(
    actors: Actors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(guard.FOLDER_VARIABLE, str(tmp_path))  # of a run without other processes on this node
    monkeypatch.setattr("convrec.runs.phases.FIRST_TIMES", 1000)  # for the time before the phase
    phases = Phases(0.05)
    with phases.phase("gen"):
        pass  # its median is next to nothing
    watch = liveness.Watch(actors.handles, phases)
    watch.start()
    try:
        with (
            pytest.raises(NoProgress, match=r"in phase gen .*: no answer from training worker 0; the log has"),
            phases.phase("gen"),
        ):
            time.sleep(30)
    finally:
        watch.stopped.set()


def test_lost_gcs_server_is_named_but_a_restarted_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1.0
    monkeypatch.setattr(nodes.time, "monotonic", lambda: now)
    with socket.create_server(("127.0.0.1", 0)) as server:
        watched = nodes.Nodes()
        watched.gcs = server.getsockname()
        assert watched.find_lost_gcs() == ""
    assert watched.find_lost_gcs() == ""  # for a moment
    now += nodes.GCS_SECONDS + 1
    gone = f"Ray's gcs_server at 127.0.0.1:{watched.gcs[1]} is gone (killed, or out of memory)"
    assert watched.find_lost_gcs() == gone
    watch = liveness.Watch(dict)
    watch.nodes = watched
    assert str(watch.find_problem()) == gone
    with socket.create_server(watched.gcs):
        assert watched.find_lost_gcs() == ""
    assert watched.find_lost_gcs() == ""  # counting starts again


def test_a_lost_node_is_named_with_what_it_held(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    actors.state |= {"training worker 1": "busy", "vLLM server 1.0": "busy"}
    actors.nodes |= {"training worker 1": "bbbbbbbbbb", "vLLM server 1.0": "bbbbbbbbbb"}
    watch = liveness.Watch(actors.handles)
    watch.nodes.locate_actors(actors.handles())
    alive = {"NodeManagerHostname": "n2", "NodeManagerAddress": "10.0.0.2"}
    monkeypatch.setattr(
        ray,
        "nodes",
        lambda: [{"NodeID": "aaaaaaaaaa", "Alive": True}, {"NodeID": "bbbbbbbbbb", "Alive": False, **alive}],
    )
    watch.find_lost_actor()
    actors.state["vLLM server 0.0"] = "dead"
    assert str(watch.find_problem()) == (
        "the node n2 (10.0.0.2, bbbbbbbb) is lost; it held: training worker 1, vLLM server 1.0"
    )
