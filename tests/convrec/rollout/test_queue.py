"""One run a Ray cluster: TransferQueue would let a second one attach to the first one's queue."""

from typing import Any

import pytest
import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import interface

from convrec.errors import UserError
from convrec.rollout import queue as rollout_queue


class Cluster:
    """In Ray's and TransferQueue's place: a controller that is there for so many looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: float, starts: bool = True) -> None:
        self.looks, self.starts, self.seconds, self.begun = looks, starts, 0.0, 0
        monkeypatch.setattr(interface, "_TQ_STORAGE", None)
        monkeypatch.setattr(interface, "_TQ_CONTROLLER", None)
        monkeypatch.setattr(ray, "get_actor", self.get_actor)
        monkeypatch.setattr(tq, "init", self.init)
        monkeypatch.setattr(rollout_queue.time, "sleep", self.sleep)
        monkeypatch.setattr(rollout_queue.time, "monotonic", lambda: self.seconds)

    def get_actor(self, name: str, namespace: str) -> str:
        assert (name, namespace) == ("TransferQueueController", "transfer_queue")
        self.looks -= 1
        if self.looks < 0:
            raise ValueError(f"Failed to look up actor {name}")
        return name

    def init(self, settings: Any) -> None:
        self.begun += 1
        self.settings = OmegaConf.create(settings)  # as TransferQueue's merge: away from the rest of the config
        interface._TQ_CONTROLLER = "controller"
        if self.starts:
            interface._TQ_STORAGE = {"SimpleStorage": {"TransferQueueStorageUnit#0": "unit"}}

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


SETTINGS = OmegaConf.create({})


def test_the_queue_is_started_at_once_on_a_free_cluster_and_its_processes_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, looks=0)
    rollout_queue.start(SETTINGS)
    assert cluster.begun == 1
    assert cluster.seconds == 0
    assert rollout_queue.actors() == {"TransferQueueController": "controller", "TransferQueueStorageUnit#0": "unit"}


def test_the_queue_gets_values_not_references_to_the_rest_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, looks=0)
    config = OmegaConf.create({"trainer": {"nnodes": 3}, "transfer_queue": {"units": "${trainer.nnodes}"}})
    rollout_queue.start(config.transfer_queue)
    assert OmegaConf.to_container(OmegaConf.merge({}, cluster.settings), resolve=True) == {"units": 3}


def test_a_run_that_is_just_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, looks=3)
    rollout_queue.start(SETTINGS)
    assert cluster.begun == 1
    assert cluster.seconds == 3


def test_a_cluster_that_another_run_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, looks=float("inf"))
    with pytest.raises(UserError, match=r"another run holds this Ray cluster.*ray job stop"):
        rollout_queue.start(SETTINGS)
    assert cluster.begun == 0


def test_of_two_runs_that_start_at_once_the_one_that_only_attached_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(monkeypatch, looks=0, starts=False)
    with pytest.raises(UserError, match="another run holds this Ray cluster"):
        rollout_queue.start(SETTINGS)
