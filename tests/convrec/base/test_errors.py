"""What an error is called on the screen."""

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from convrec.base.errors import is_of_lost_process, one_line


def wrapped(cause: Exception) -> RayTaskError:
    return RayTaskError("generate", "a traceback\nof many lines", cause)


def test_a_lost_process_is_called_so_however_it_is_wrapped() -> None:
    lost = "is gone (killed, or out of memory)"
    assert one_line(RayActorError()) == f"a process of the run {lost}"
    of_ray = "The actor died unexpectedly.\n\tclass_name: make.<locals>.WorkerDict\n\tactor_id: 1\n"
    assert one_line(RayActorError(error_msg=of_ray)) == f"a process of the run, WorkerDict, {lost}"
    assert one_line(wrapped(EngineDeadError())) == f"vLLM's engine {lost}"
    assert all(map(is_of_lost_process, (RayActorError(), wrapped(EngineDeadError()))))


def test_a_process_whose_start_failed_is_called_by_its_error() -> None:
    failed = ActorDiedError(RayTaskError("__init__", "a traceback\nValueError: no GPU", ValueError("no GPU")))
    assert one_line(failed) == "ValueError: no GPU"
    assert not is_of_lost_process(failed)


def test_the_innermost_cause_in_one_line() -> None:
    assert one_line(wrapped(ValueError("line before\nno catalog\n"))) == "ValueError: no catalog"
    assert one_line(RuntimeError("what our own checks say")) == "what our own checks say"
    assert one_line(KeyError()) == "KeyError"
    memory = ray.exceptions.OutOfMemoryError("21 of 23 GiB are in use\nRefer to the documentation ...")
    assert one_line(memory) == "OutOfMemoryError: 21 of 23 GiB are in use"
