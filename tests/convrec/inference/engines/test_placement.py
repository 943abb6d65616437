"""The GPUs or cores of a node that each replica gets."""

from convrec.inference.engines.placement import Placement, divide_node
from tests.user_errors import refuses

ON_CPU = {"TORCH_COMPILE_DISABLE": "1"}


def devices(replicas: int | str, tensor_parallel: int, gpus: list[str]) -> list[str]:
    environments = divide_node(replicas, tensor_parallel, gpus, cores=8)
    return [environment["CUDA_VISIBLE_DEVICES"] for environment in environments]


def test_replicas_get_gpus_of_their_own() -> None:
    eight = [str(number) for number in range(8)]
    assert devices("auto", 1, eight) == eight
    assert devices("auto", 2, eight) == ["0,1", "2,3", "4,5", "6,7"]
    assert devices("auto", 3, eight) == ["0,1,2", "3,4,5"]
    assert devices(2, 1, eight) == ["0", "1"]
    assert devices("auto", 1, ["GPU-a", "GPU-b"]) == ["GPU-a", "GPU-b"]  # as CUDA_VISIBLE_DEVICES named them
    with refuses("replicas.too-few-gpus", "--replicas 3", "12 GPUs", "has 8"):
        divide_node(3, 4, eight, cores=8)
    with refuses("replicas.too-few-gpus", "--tensor-parallel 2", "2 GPUs", "has 1"):
        divide_node("auto", 2, ["0"], cores=8)


def test_replicas_on_a_cpu_share_its_cores() -> None:
    assert divide_node("auto", 1, [], cores=8) == [ON_CPU]
    assert divide_node(3, 1, [], cores=8) == [ON_CPU | {"OMP_NUM_THREADS": "2"}] * 3
    assert divide_node(4, 1, [], cores=2) == [ON_CPU | {"OMP_NUM_THREADS": "1"}] * 4
    assert divide_node("auto", 2, ["0", "1"], cores=8) == [{}]


def test_invalid_numbers_of_replicas_are_refused() -> None:
    for wrong in (0, "many", 1.5):
        with refuses("replicas.invalid-number", f"--replicas {wrong}", "auto"):
            Placement(wrong)  # type: ignore[arg-type]
    with refuses("replicas.invalid-number", "--tensor-parallel 0"):
        Placement(1, 0)
