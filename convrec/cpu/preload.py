"""Import the packages of a run's processes once, on a host without a GPU: the processes are then forked."""

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
    """Start the fork server (convrec.cpu.fork_server), and let the Ray that this process will start fork its workers.

    Args:
        folder: the folder of the server's socket.
        environment: further variables for the imports; each worker gets its own variables later.
    """
    import ray._private.parameter as parameter

    # this code comes last, because the environment may name another copy
    paths = [environment.get("PYTHONPATH", os.environ.get("PYTHONPATH")), str(Path(__file__).parents[2])]
    # Ray reads the other two on import. They are those of the Ray that this process will start: the id of its first
    # job, and this process in place of the raylet, with which workers end.
    import_variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "RAY_JOB_ID": "01000000",
        "RAY_RAYLET_PID": str(os.getpid()),
    }
    fork_server.start(folder, MODULES, {**environment, **import_variables})
    # setup_worker_path is the script that a raylet runs for each worker, with the worker's script and arguments
    client = str(folder / fork_server.CLIENT)
    parameter.RayParams.__init__ = partialmethod(parameter.RayParams.__init__, setup_worker_path=client)
