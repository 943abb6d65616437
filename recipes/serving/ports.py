"""Where a replica of Ray Serve listens."""

import ray


def keep_to_the_nodes_address() -> None:
    """Open this replica's port for other replicas on the node's address alone: without a cluster, the loopback.

    Ray Serve opens it on every interface and unpickles what arrives there, which runs code. Must be called before the
    replica has started its server: in the deployment's constructor.
    """
    from ray.serve._private import replica

    address = ray.util.get_node_ip_address()
    host = f"[{address}]" if ":" in address else address
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, place: add_port(server, place.replace("[::]", host))
