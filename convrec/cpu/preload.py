"""What the processes of a run without a GPU import, imported once: they are forked (convrec.cpu.fork_server)."""

import os
from collections.abc import Mapping
from functools import partialmethod
from pathlib import Path

from convrec.cpu import fork_server

MODULES = (
    "convrec.cpu.class_ids",
    "transfer_queue",
    "convrec.training.worker",
    "convrec.cpu.engine",
    "convrec.cpu.server",
    "convrec.rollout.agent_loop",
    "convrec.rollout.reward_manager",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.entrypoints.openai.api_server",
)


def start(folder: Path, environment: Mapping[str, str]) -> None:
    """Have Ray, once it is started by this process, fork its workers. environment: what imports read, beside this
    process's; each worker gets its own."""
    import ray._private.parameter as parameter

    # this code comes last: the environment may name another
    paths = [environment.get("PYTHONPATH", os.environ.get("PYTHONPATH")), str(Path(__file__).parents[2])]
    # Ray reads the others when it is imported, as it will be for this process' own Ray: its first job, and this process
    # for the raylet whose end ends a worker
    read_first = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "RAY_JOB_ID": "01000000",
        "RAY_RAYLET_PID": str(os.getpid()),
    }
    fork_server.start(folder, MODULES, {**environment, **read_first})
    # the script that a raylet has Python run for each worker, with the worker's script and arguments
    client = str(folder / fork_server.CLIENT)
    parameter.RayParams.__init__ = partialmethod(parameter.RayParams.__init__, setup_worker_path=client)
