"""What an error is called on the screen."""

import pickle

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from convrec.base.errors import UserError, is_of_lost_process, one_line


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
