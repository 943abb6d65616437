"""What runs ask of a cluster, by the settings that they compose to."""

import pytest

from convrec.errors import UserError
from recipes.experiments.amount import composed
from recipes.experiments.matrix_file import Run
from recipes.experiments.needs import tasks_of, with_devices
from recipes.experiments.schedule import Node, Task

SFT = Run("sft", "sft", "sft", None, {"SEED": "1", "N_GPUS_PER_NODE": "2"})
RANK = Run("rank", "rank", "rank_grpo", "sft", {"SEED": "1", "N_GPUS_PER_NODE": "2", "N_NODES": "2"})
ROOMY = [Node(8, 64), Node(8, 64)]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return composed([SFT, RANK], tmp_path_factory.mktemp("out"))


def test_a_run_is_two_tasks_after_those_of_its_start(configs: dict) -> None:
    """Rank-GRPO on 2 x 2 GPUs: 3 CPU slots for each, and 4 for TransferQueue (3) and what is placed."""
    assert tasks_of([SFT, RANK], configs, {"tensor_parallel": 2}, ROOMY) == [
        Task("sft-train", (), ((1, 2),), 2),
        Task("sft-evaluate", ("sft-train",), ((1, 2),)),
        Task("rank-train", ("sft-train",), ((2, 2),), 2 * 2 * 3 + 4),
        Task("rank-evaluate", ("rank-train", "sft-evaluate"), ((1, 2),)),
    ]


@pytest.mark.parametrize(("replicas", "gpus"), [(3, 6), ("auto", 2)])
def test_an_evaluation_takes_the_gpus_of_its_replicas(configs: dict, replicas: int | str, gpus: int) -> None:
    *_, evaluation = tasks_of([SFT], configs, {"tensor_parallel": 2, "replicas": replicas}, ROOMY)
    assert evaluation.groups == ((1, gpus),)


def test_a_start_that_is_not_among_the_runs_is_not_waited_for(configs: dict) -> None:
    assert [task.after for task in tasks_of([RANK], configs, {}, ROOMY)] == [(), ("rank-train",)]


def test_what_has_no_room_on_the_empty_cluster_is_refused(configs: dict) -> None:
    with pytest.raises(UserError, match=r"rank-train: it needs 2 x 2 GPU slots and 16 CPU slots.*nodes have 8 GPU"):
        tasks_of([SFT, RANK], configs, {}, [Node(8, 64)])
    with pytest.raises(UserError, match="sft-evaluate: it needs 1 x 16 GPU slots"):
        tasks_of([SFT], configs, {"tensor_parallel": 16}, ROOMY)


@pytest.mark.parametrize("run", [SFT, RANK])
def test_without_gpu_slots_nothing_trains(configs: dict, run: Run) -> None:
    with pytest.raises(UserError, match=f"{run.name}-train: it needs"):
        tasks_of([run], configs, {}, [Node(0, 64)])


def test_how_many_gpus_a_run_takes_is_said_where_there_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("N_GPUS_PER_NODE", raising=False)
    unsaid = Run("a", "a", "sft", None, {"SEED": "1"})
    assert with_devices([unsaid, SFT], [Node(1, 4), Node(0, 4)])[0].variables["N_GPUS_PER_NODE"] == "1"
    with pytest.raises(UserError, match=r"a: set N_GPUS_PER_NODE.*up to 8 GPUs"):
        with_devices([unsaid], ROOMY)
    monkeypatch.setenv("N_GPUS_PER_NODE", "4")
    assert [run.variables["N_GPUS_PER_NODE"] for run in with_devices([unsaid, SFT], ROOMY)] == ["4", "2"]
