"""One-line descriptions of errors, and codes of user errors."""

import pickle

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from convrec.base.errors import UserError, is_lost_process, one_line


def wrap_in_ray_error(cause: Exception) -> RayTaskError:
    return RayTaskError("generate", "a traceback\nof many lines", cause)


def test_a_lost_process_is_described_in_every_wrapper() -> None:
    lost = "is gone (killed, or out of memory)"
    assert one_line(RayActorError()) == f"a process of the run {lost}"
    ray_message = "The actor died unexpectedly.\n\tclass_name: make.<locals>.WorkerDict\n\tactor_id: 1\n"
    assert one_line(RayActorError(error_msg=ray_message)) == f"a process of the run, WorkerDict, {lost}"
    assert one_line(wrap_in_ray_error(EngineDeadError())) == f"vLLM's engine {lost}"
    assert all(map(is_lost_process, (RayActorError(), wrap_in_ray_error(EngineDeadError()))))


def test_a_process_whose_start_failed_is_described_by_its_error() -> None:
    error = ActorDiedError(RayTaskError("__init__", "a traceback\nValueError: no GPU", ValueError("no GPU")))
    assert one_line(error) == "ValueError: no GPU"
    assert not is_lost_process(error)


def test_one_line_has_the_innermost_cause() -> None:
    assert one_line(wrap_in_ray_error(ValueError("line before\nno catalog\n"))) == "ValueError: no catalog"
    assert one_line(RuntimeError("a sentence of our own")) == "a sentence of our own"
    assert one_line(KeyError()) == "KeyError"
    memory = ray.exceptions.OutOfMemoryError("21 of 23 GiB are in use\nRefer to the documentation ...")
    assert one_line(memory) == "OutOfMemoryError: 21 of 23 GiB are in use"


def test_user_error_keeps_its_code_across_processes() -> None:
    error = pickle.loads(pickle.dumps(UserError("catalog.no-titles", "items.csv: no titles; add a column title")))
    assert (error.code, str(error)) == ("catalog.no-titles", "items.csv: no titles; add a column title")
    assert error.as_line() == "error: items.csv: no titles; add a column title [catalog.no-titles]"


def test_user_error_keeps_its_code_in_rays_wrapper() -> None:
    wrapper = RayTaskError("load", "a traceback", UserError("catalog.no-titles", "items.csv: no titles"))
    error = wrapper.as_instanceof_cause()
    assert isinstance(error, UserError)
    assert error.code == "catalog.no-titles"
    assert one_line(error) == "UserError: items.csv: no titles"
