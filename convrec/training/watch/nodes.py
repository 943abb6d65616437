"""Which node of the cluster holds what of a run, which one is lost, and what the processes on all of them do."""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from convrec.runs import guard, stacks

logger = logging.getLogger(__name__)

NODE_DEATH_SECONDS = 40.0  # Ray gives a node up when it has missed five checks, some 30 s; of a closed socket at once
STACKS_SECONDS = 90.0  # that another node may take to start a worker and read its stacks


class Nodes:
    """The nodes of a run by Ray's ids, and the actors that each holds."""

    def __init__(self) -> None:
        self.held: dict[str, list[str]] = {}

    def learn(self, actors: Mapping[str, Any]) -> None:
        """Ray forgets where an actor was when its node is gone. It has no public way to ask: a way that fails one day
        costs a name in a message, and must not end a run."""
        for name, handle in actors.items():
            try:
                node = ray._private.state.actors(handle._actor_id.hex())["Address"]["NodeID"]
            except Exception:
                logger.warning("the node of the %s is not known", name, exc_info=True)
                continue
            self.held.setdefault(node, []).append(name)

    def lost_node(self) -> str:
        """A sentence that names the node that is gone and what it held; "" when all are there. Waits for Ray to know,
        where there is more than one."""
        deadline = time.monotonic() + NODE_DEATH_SECONDS
        while len(self.held) > 1:
            for node in ray.nodes():
                if not node["Alive"] and node["NodeID"] in self.held:
                    what = ", ".join(self.held[node["NodeID"]])
                    where = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"
                    return f"the node {where} is lost; it held: {what}"
            if time.monotonic() > deadline:
                break
            time.sleep(1)
        return ""


def hanging_processes(silent: Sequence[str]) -> str:
    """Write the stacks of all the run's processes to the log. Returns which of them are to blame, as far as that shows.

    silent: names of the actors that do not answer.
    """
    folder, host = os.environ.get(guard.FOLDER_VARIABLE, ""), socket.gethostname()
    stuck: list[str] = []
    try:
        for text, there in [stacks.of_this_node(folder, host), *_of_other_nodes(folder)]:
            logger.error("stacks of the run's processes\n%s", text)
            stuck += there
    except Exception:  # the run hangs all the same
        logger.exception("the stacks cannot be read")
    if stuck:
        return "; ".join(stuck)
    who = f"no answer from {', '.join(silent)}" if silent else "every process answers"
    return f"{who}; the log has the stacks of all processes"


def _of_other_nodes(folder: str) -> list[tuple[str, list[str]]]:
    """`stacks.of_this_node` there. In a thread, which nothing waits for in the end: Ray itself may be what hangs."""
    found: list[tuple[str, list[str]]] = []
    thread = threading.Thread(target=lambda: found.extend(_ask_other_nodes(folder)), daemon=True)
    thread.start()
    thread.join(STACKS_SECONDS + 10)
    return found if not thread.is_alive() else [("", ["Ray does not answer either"])]


def _ask_other_nodes(folder: str) -> list[tuple[str, list[str]]]:
    here = ray.get_runtime_context().get_node_id()
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    task = ray.remote(num_cpus=0, max_retries=0)(stacks.of_this_node)
    asked = {}
    for node, host in names.items():
        if node != here:
            there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            asked[node] = there.remote(folder, f"{host}, node {node[:8]}")
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=STACKS_SECONDS)
    found = []
    for node, answer in asked.items():
        try:
            found.append(ray.get(answer, timeout=0))
        except RayError as error:  # of a node that is lost, or whose raylet is stopped
            where = f"{names[node]} (node {node[:8]})"
            found.append((f"{where}: {type(error).__name__}", [f"{where} does not answer"]))
    return found
