"""A stranger of the same machine: another user, who finds the ports of a run and has none of its keys.

A script, so that it has imported all it needs before it becomes the other user:

    python tests/strangers.py PROOF ADDRESS ... [--key KEY]

It tries each address, tcp://127.0.0.1:PORT, in every way by which the servers of a run could be asked, and prints what
has let it in.
"""

import argparse
import contextlib
import http.client
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import msgspec
import zmq
from transfer_queue.utils import serial_utils
from zmq.utils.monitor import recv_monitor_message

STRANGER = 65534
SECONDS = 3.0  # that an answer may take
REFUSALS = {
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_DISCONNECTED,
}
# A method of each service of Ray that needs no argument.
RAY_METHODS = (
    "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "ray.rpc.InternalKVGcsService/InternalKVKeys",
    "ray.rpc.NodeManagerService/GetNodeStats",
    "ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "ray.rpc.ReporterService/GetTraceback",
)


def try_as_stranger(addresses: Iterable[str], proof: Path, key: bytes | None = None) -> list[list[str]]:
    """Try the addresses in a process of another user, where this one is root.

    Args:
        addresses: as ZeroMQ writes them.
        proof: a file that is made where something that the stranger sends is unpickled.
        key: what the stranger takes for the public key of ZeroMQ's servers; None: he tries without encryption.

    Returns:
        An [address, way] for each way in.
    """
    command = [sys.executable, __file__, str(proof), *addresses, *(["--key", key.decode()] if key else [])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Code:
    """What runs when it is unpickled."""

    def __init__(self, proof: str) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.proof}",)


def send_pickle(address: str, proof: str, key: str | None) -> bool:
    """Send a pickle as a message of TransferQueue. Returns whether ZeroMQ has let the sender in."""
    message = msgspec.msgpack.encode(msgspec.msgpack.Ext(serial_utils.CUSTOM_TYPE_PICKLE, pickle.dumps(Code(proof))))
    client = zmq.Context().socket(zmq.DEALER)
    client.identity = b"TQ_STORAGE_stranger"  # a storage unit reads nobody else's messages
    if key is not None:
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.curve_serverkey = key.encode()
    client.sndtimeo = int(1000 * SECONDS)
    events = client.get_monitor_socket()
    client.connect(address)
    with contextlib.suppress(zmq.Again):  # a server that has refused before this line leaves nobody to send to
        client.send_multipart([message])
    is_in = False
    while events.poll(1000 * SECONDS):
        event = recv_monitor_message(events)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            time.sleep(1)  # until the message is sent
            is_in = True
            break
        if event in REFUSALS:
            break
    client.disable_monitor()
    client.close(linger=0)
    return is_in


def get_page(address: str) -> bool:
    """Ask for a page. Returns whether the answer is one."""
    connection = http.client.HTTPConnection(address.removeprefix("tcp://"), timeout=SECONDS)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    return False


def call_ray(address: str) -> list[str]:
    """Call Ray's services without a token. Returns the methods that are answered."""
    answered = []
    with grpc.insecure_channel(address.removeprefix("tcp://")) as channel:
        for method in RAY_METHODS:
            call = channel.unary_unary(f"/{method}", lambda request: request, lambda answer: answer)
            try:
                call(b"", timeout=SECONDS)
                answered.append(method)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    break  # no server of gRPC
    return answered


def ways_in(address: str, proof: str, key: str | None) -> list[str]:
    """Try everything at one address."""
    found = []
    if send_pickle(address, proof, key):
        found.append("ZeroMQ")
    if get_page(address):
        found.append("HTTP")
    return found + call_ray(address)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("proof")
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--key")
    options = parser.parse_args()
    grpc.insecure_channel("127.0.0.1:1").close()  # it imports more, from where the other user may not read
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda address: ways_in(address, options.proof, options.key), options.addresses)
    print(json.dumps([[address, way] for address, ways in zip(options.addresses, found, strict=True) for way in ways]))


if __name__ == "__main__":
    main()
