"""Each run has its own queue; tests/e2e/test_matrix.py has two runs on one cluster at the same time."""

from typing import Any

import pytest
import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import controller, interface

from convrec.rollout import queue as rollout_queue
from convrec.rollout import queue_sockets


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no queue yet, and no Ray: test_queue_sockets.py has both."""
    monkeypatch.setattr(queue_sockets, "make_key", lambda: None)
    for module in queue_sockets.MODULES:
        monkeypatch.setattr(module, "create_zmq_socket", queue_sockets.create_plain_socket)
    for name in ("_TQ_STORAGE", "_TQ_CONTROLLER", "ray", "TransferQueueController"):
        monkeypatch.setattr(interface, name, getattr(interface, name))


class Namespaces:
    """A fake of Ray's names: TransferQueue's namespace has the controller of another run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(ray, "get_actor", self.get_actor)
        monkeypatch.setattr(controller, "TransferQueueController", self)

    def get_actor(self, name: str, namespace: str | None = None) -> str:
        self.asked.append({"look": name})
        if namespace != "transfer_queue":
            raise ValueError(f"Failed to look up actor {name}")
        return "another run's"

    def options(self, **options: Any) -> None:
        self.asked.append(options)
        raise InterruptedError  # the rest needs Ray


def test_a_run_does_not_attach_to_another_runs_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Namespaces(monkeypatch)
    with pytest.raises(InterruptedError):
        rollout_queue.start(OmegaConf.create({}))
    assert cluster.asked == [{"look": "TransferQueueController"}, {"name": "TransferQueueController"}]
    assert interface._TQ_CONTROLLER is None


def test_transfer_queue_alone_attaches_to_any_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for our queue module: if this fails, TransferQueue separates runs, and the module can go."""
    monkeypatch.setattr(interface, "_maybe_create_tq_client", lambda settings: None)
    monkeypatch.setattr(ray, "get", lambda reference: {})

    class Controller:
        class get_config:
            remote = staticmethod(lambda: None)

    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: Controller)
    tq.init()
    assert interface._TQ_CONTROLLER is Controller


def test_the_rest_of_ray_is_rays() -> None:
    rollout_queue.use_own_queue()
    assert interface.ray.get is ray.get
