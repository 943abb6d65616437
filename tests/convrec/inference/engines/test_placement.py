"""Which GPUs or cores of a node a replica gets."""

import pytest

from convrec.base.errors import UserError
from convrec.inference.engines.placement import Placement, divide_node

ON_CPU = {"TORCH_COMPILE_DISABLE": "1"}


def devices(replicas: int | str, tensor_parallel: int, gpus: list[str]) -> list[str]:
    return [one["CUDA_VISIBLE_DEVICES"] for one in divide_node(replicas, tensor_parallel, gpus, cores=8)]


def test_replicas_get_gpus_of_their_own() -> None:
    eight = [str(number) for number in range(8)]
    assert devices("auto", 1, eight) == eight
    assert devices("auto", 2, eight) == ["0,1", "2,3", "4,5", "6,7"]
    assert devices("auto", 3, eight) == ["0,1,2", "3,4,5"]
    assert devices(2, 1, eight) == ["0", "1"]
    assert devices("auto", 1, ["GPU-a", "GPU-b"]) == ["GPU-a", "GPU-b"]  # as CUDA_VISIBLE_DEVICES named them
    with pytest.raises(UserError, match="--replicas 3 of 4 GPUs each: this node has 8 GPUs"):
        divide_node(3, 4, eight, cores=8)
    with pytest.raises(UserError, match="--replicas 1 of 2 GPUs each: this node has 1 GPUs"):
        divide_node("auto", 2, ["0"], cores=8)


def test_on_a_cpu_they_share_the_cores_and_one_has_all_there_is() -> None:
    assert divide_node("auto", 1, [], cores=8) == [ON_CPU]
    assert divide_node(3, 1, [], cores=8) == [ON_CPU | {"OMP_NUM_THREADS": "2"}] * 3
    assert divide_node(4, 1, [], cores=2) == [ON_CPU | {"OMP_NUM_THREADS": "1"}] * 4
    assert divide_node("auto", 2, ["0", "1"], cores=8) == [{}]


def test_what_is_no_number_of_replicas() -> None:
    for wrong in (0, "many", 1.5):
        with pytest.raises(UserError, match=f"--replicas {wrong}: give auto, or a number from 1"):
            Placement(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--tensor-parallel 0: give a number from 1"):
        Placement(1, 0)
