"""Encrypt TransferQueue's sockets with a key of the run; clients without the key are refused.

TransferQueue unpickles the messages that its sockets receive (notes/transferqueue-pickle.md), so a message can execute
code. Its ports are TCP: every user of the machine can reach them, and on a cluster everybody in the nodes' network. So
the sockets use CURVE, ZeroMQ's encryption. A server closes the connection of a client that does not know its public
key before it reads any message. Each run makes its own key pair, and keeps the public key secret too.

The run's processes read the pair from Ray's key-value store, which asks for the cluster's token. An environment
variable would not be safe: Ray passes variables to a worker on a command line, which all users of the machine can read.
"""

from functools import cache
from typing import Any

import ray
import zmq
from ray.experimental import internal_kv
from transfer_queue import controller
from transfer_queue.storage import simple_storage
from transfer_queue.storage.managers import base
from transfer_queue.utils import zmq_utils

# These modules of TransferQueue create sockets, and each has imported the function under its name.
MODULES = (zmq_utils, base, controller, simple_storage)
KEY_NAMESPACE = b"convrec_queue_key"
KEY_BYTES = 40  # length of a key in ZeroMQ's encoding
create_plain_socket = zmq_utils.create_zmq_socket


def make_key() -> None:
    """Make the key pair of this run, and store it for the run's other processes. Ray must have been started."""
    public_key, secret_key = zmq.curve_keypair()
    internal_kv._internal_kv_put(_job_id(), public_key + secret_key, namespace=KEY_NAMESPACE)
    _load_key.cache_clear()  # the first job of every local Ray has the same id


def secure_sockets() -> None:
    """Make TransferQueue create encrypted sockets in this process, and in the actors that it starts.

    Ray sends an actor's class together with the functions that it uses, so the actor's sockets are encrypted too.
    """
    for module in MODULES:
        module.create_zmq_socket = create_encrypted_socket


def create_encrypted_socket(ctx: zmq.Context, socket_type: int, ip: str, identity: bytes | None = None) -> zmq.Socket:
    """Create an encrypted socket, in place of TransferQueue's `create_zmq_socket`.

    Args:
        ctx: see `create_zmq_socket`; also for the other arguments.
        socket_type: zmq.ROUTER for a server, anything else for a client.
        ip: address of the server.
        identity: name of a client; None for none.
    """
    secure_sockets()  # an actor's class came with this function, but the actor imported the rest of TransferQueue
    public_key, secret_key = _load_key(_job_id())
    socket = create_plain_socket(ctx, socket_type, ip, identity)
    socket.curve_publickey = public_key
    socket.curve_secretkey = secret_key
    if socket_type == zmq.ROUTER:
        socket.curve_server = True
    else:
        socket.curve_serverkey = public_key
    return socket


def _job_id() -> bytes:
    """Return Ray's id of the run; a cluster may have several runs."""
    return ray.get_runtime_context().get_job_id().encode()


@cache
def _load_key(job_id: bytes) -> tuple[bytes, bytes]:
    """Return the public and the secret key of the run.

    Raises:
        RuntimeError: the run has no key, so its sockets would be open.
    """
    pair: Any = internal_kv._internal_kv_get(job_id, namespace=KEY_NAMESPACE)
    if not pair:
        raise RuntimeError("TransferQueue is used before convrec.rollout.queue.start made its key")
    return pair[:KEY_BYTES], pair[KEY_BYTES:]
