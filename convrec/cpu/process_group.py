"""Processes of one machine: gloo's group, which meets in the run's folder."""

import os

from convrec.runs import guard


def init_process_group() -> None:
    """Start gloo before verl does: verl names the backend "cpu:gloo,cpu:gloo" here, which torch refuses.

    verl's own initialisation skips a group that exists. On one machine its processes find each other through a file of
    the run's folder: torch's server for that listens on every address.
    """
    from verl.utils.distributed import initialize_global_process_group_ray

    folder = os.environ.get(guard.FOLDER_VARIABLE)
    if folder and os.environ.get("MASTER_ADDR") == "127.0.0.1":
        os.environ["DIST_INIT_METHOD"] = f"file://{folder}/process-group-{os.environ['MASTER_PORT']}"  # verl's variable
    initialize_global_process_group_ray(backend="gloo")
