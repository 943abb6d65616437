"""Which node of the cluster holds what of a run, which one is lost, and what the processes on this one do."""

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from convrec.runs import guard, stacks

logger = logging.getLogger(__name__)

GCS_SECONDS = 20.0  # one with an external store (KubeRay) may be restarted; Ray itself gives up after 60 s
CONNECT_SECONDS = 2.0
NODE_DEATH_SECONDS = 40.0  # Ray gives a node up when it has missed five checks, some 30 s; of a closed socket at once


class Nodes:
    """The nodes of a run by Ray's ids, and the actors that each holds; and where Ray's gcs_server listens."""

    def __init__(self) -> None:
        self.held: dict[str, list[str]] = {}
        self.gcs = ("", 0)
        self.refused_since: float | None = None

    def lost_gcs(self) -> str:
        """A sentence where the port of Ray's gcs_server has been closed for GCS_SECONDS; "" while it is open, and while
        nothing is heard: of a lost node Ray says more."""
        try:
            socket.create_connection(self.gcs, timeout=CONNECT_SECONDS).close()
        except ConnectionRefusedError:
            now = time.monotonic()
            self.refused_since = self.refused_since or now
            if now - self.refused_since < GCS_SECONDS:
                return ""
            return f"Ray's gcs_server at {self.gcs[0]}:{self.gcs[1]} is gone (killed, or out of memory)"
        except OSError:
            pass
        self.refused_since = None
        return ""

    def learn(self, actors: Mapping[str, Any]) -> None:
        """Ray forgets where an actor was when its node is gone. It has no public way to ask: a way that fails one day
        costs a name in a message, and must not end a run."""
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self.gcs = (host.strip("[]"), int(port))
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
    """Write the stacks of the run's processes on this node to the log. Returns which of them are to blame, as far as
    that shows.

    silent: names of the actors that do not answer, on any node.
    """
    try:
        text, stuck = stacks.dump_stacks(os.environ.get(guard.FOLDER_VARIABLE, ""), socket.gethostname())
        logger.error("stacks of the run's processes\n%s", text)
    except Exception:  # the run hangs all the same
        logger.exception("the stacks cannot be read")
        stuck = []
    if stuck:
        return "; ".join(stuck)
    who = f"no answer from {', '.join(silent)}" if silent else "every process answers"
    return f"{who}; the log has the stacks of this node's processes"
