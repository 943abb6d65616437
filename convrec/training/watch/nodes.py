"""Find the nodes of a run's actors, lost nodes, and the hanging processes on this node."""

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from convrec.runs import guard, stacks

logger = logging.getLogger(__name__)

GCS_SECONDS = 20.0  # a gcs_server with an external store (KubeRay) may restart; Ray itself gives up after 60 s
CONNECT_SECONDS = 2.0
NODE_DEATH_SECONDS = 40.0  # Ray gives a node up after five missed checks, some 30 s, or at once if its socket closes


class Nodes:
    """The nodes of a run by Ray's ids, with the actors on each, and the address of Ray's gcs_server."""

    def __init__(self) -> None:
        self.actors_by_node: dict[str, list[str]] = {}
        self.gcs = ("", 0)
        self.refused_since: float | None = None

    def find_lost_gcs(self) -> str:
        """Return a message if the port of Ray's gcs_server has been closed for GCS_SECONDS, else "".

        A host that does not answer at all is not reported here: Ray reports a lost node with more detail.
        """
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

    def locate_actors(self, actors: Mapping[str, Any]) -> None:
        """Note the node of each actor, which Ray forgets when the node is lost.

        Ray has no public function for this. If the private one fails one day, messages lack a name; the run goes on.
        """
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self.gcs = (host.strip("[]"), int(port))
        for name, handle in actors.items():
            try:
                node = ray._private.state.actors(handle._actor_id.hex())["Address"]["NodeID"]
            except Exception:
                logger.warning("cannot find the node of the %s", name, exc_info=True)
                continue
            self.actors_by_node.setdefault(node, []).append(name)

    def find_lost_node(self) -> str:
        """Return a message that names the lost node and its actors; "" if all nodes are alive.

        With several nodes, wait up to NODE_DEATH_SECONDS for Ray to notice.
        """
        deadline = time.monotonic() + NODE_DEATH_SECONDS
        while len(self.actors_by_node) > 1:
            for node in ray.nodes():
                if not node["Alive"] and node["NodeID"] in self.actors_by_node:
                    what = ", ".join(self.actors_by_node[node["NodeID"]])
                    where = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"
                    return f"the node {where} is lost; it held: {what}"
            if time.monotonic() > deadline:
                break
            time.sleep(1)
        return ""


def describe_hang(silent: Sequence[str]) -> str:
    """Write the stacks of the run's processes on this node to the log, and return which of them seem to hang.

    Args:
        silent: names of the actors that do not answer, on any node.
    """
    try:
        text, stuck = stacks.dump_stacks(os.environ.get(guard.FOLDER_VARIABLE, ""), socket.gethostname())
        logger.error("stacks of the run's processes\n%s", text)
    except Exception:  # the hang must be reported in any case
        logger.exception("cannot read the stacks")
        stuck = []
    if stuck:
        return "; ".join(stuck)
    who = f"no answer from {', '.join(silent)}" if silent else "every process answers"
    return f"{who}; the log has the stacks of this node's processes"
