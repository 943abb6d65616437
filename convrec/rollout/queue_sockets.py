"""TransferQueue's sockets, encrypted with a key of the run: whoever has no key is not let in.

TransferQueue unpickles what its sockets receive (notes/transferqueue-pickle.md), so that a message is code. Its ports
are TCP: every user of the machine reaches them, and on a cluster everybody in the nodes' network. Here the sockets
speak CURVE, ZeroMQ's encryption. A server closes the connection of a client that does not know its public key, before
any message is read. The key pair is made for each run, and the public key is kept as secret as the other.

The run's processes read the pair from Ray's key-value store, which asks for the cluster's token. An environment
variable would not do: Ray hands a worker its variables on a command line, which every user of the machine may read.
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

# the modules of TransferQueue that make sockets, each with the function by its own name
MODULES = (zmq_utils, base, controller, simple_storage)
KEY_NAMESPACE = b"convrec_queue_key"
KEY_BYTES = 40  # of a key as ZeroMQ writes it
create_plain_socket = zmq_utils.create_zmq_socket


def make_key() -> None:
    """Make the key pair of this run, and put it where its other processes find it. Ray must have been started."""
    public_key, secret_key = zmq.curve_keypair()
    internal_kv._internal_kv_put(_job_id(), public_key + secret_key, namespace=KEY_NAMESPACE)
    _load_key.cache_clear()  # the first job of every local Ray has one id


def secure_sockets() -> None:
    """Have TransferQueue make encrypted sockets in this process, and in the actors that it starts.

    Ray sends an actor's class with the functions that it uses, so that an actor's own sockets come from here too.
    """
    for module in MODULES:
        module.create_zmq_socket = create_encrypted_socket


def create_encrypted_socket(ctx: zmq.Context, socket_type: int, ip: str, identity: bytes | None = None) -> zmq.Socket:
    """Replace `create_zmq_socket` of TransferQueue, whose servers are ROUTER sockets and whose clients are DEALERs."""
    secure_sockets()  # an actor's class came with this function, the rest of TransferQueue was imported there
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
    """Return Ray's id of the run: one cluster has several."""
    return ray.get_runtime_context().get_job_id().encode()


@cache
def _load_key(job_id: bytes) -> tuple[bytes, bytes]:
    """Return the public and the secret key of the run.

    Raises:
        RuntimeError: The run has none, so that its sockets would be open.
    """
    pair: Any = internal_kv._internal_kv_get(job_id, namespace=KEY_NAMESPACE)
    if not pair:
        raise RuntimeError("TransferQueue is used before convrec.rollout.queue.start made its key")
    return pair[:KEY_BYTES], pair[KEY_BYTES:]
