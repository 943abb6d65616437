"""Who writes the lists: an engine in this process, several on the GPUs of this node, or workers of Ray Data."""

import collections
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.errors import UserError
from convrec.serving.follower import Follower
from convrec.serving.recommender import Recommender
from recipes.batch.chats import Chat
from recipes.batch.parts import recommend_part

Part = tuple[int, list[Chat]]
ROOT = Path(__file__).resolve().parents[2]  # of the packages


@dataclass(frozen=True)
class Asked:
    """What every replica loads and writes; settings: further ones of Recommender.load."""

    model: str
    catalog: str
    k: int
    tensor_parallel: int
    settings: dict[str, Any]

    def load(self) -> Recommender:
        return Recommender.load(
            self.model, self.catalog, max_items=self.k, tensor_parallel=self.tensor_parallel, **self.settings
        )


def write_here(parts: Iterator[Part], asked: Asked) -> Iterator[tuple[int, pa.Table]]:
    """One engine."""
    with asked.load() as recommender:
        for number, chats in parts:
            yield number, recommend_part(recommender, chats, asked.k)


# ---- several engines on this node

_recommender: Recommender | None = None  # of a worker's process


def write_in_processes(parts: Iterator[Part], asked: Asked, replicas: int) -> Iterator[tuple[int, pa.Table]]:
    """An engine in each of so many processes, on GPUs of its own where there are any; parts come as they are done.

    Raises concurrent.futures' BrokenProcessPool where a process is killed.
    """
    context = multiprocessing.get_context("spawn")
    places = context.SimpleQueue()
    for devices in _devices(replicas, asked.tensor_parallel):
        places.put(devices)
    with ProcessPoolExecutor(replicas, context, _start, (places, asked, replicas)) as pool:
        running = collections.deque[Any]()
        for number, chats in parts:
            running.append((number, pool.submit(_write, chats, asked.k)))
            if len(running) >= 2 * replicas:  # one that is written and one that waits
                first, future = running.popleft()
                yield first, future.result()
        for number, future in running:
            yield number, future.result()


def _devices(replicas: int, tensor_parallel: int) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each replica, None on a CPU. Raises UserError for too few GPUs."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        return [None] * replicas
    if replicas * tensor_parallel > count:
        raise UserError(f"--replicas {replicas} of {tensor_parallel} GPUs each: this node has {count} GPUs")
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(number) for number in range(count)]
    return [",".join(names[r * tensor_parallel : (r + 1) * tensor_parallel]) for r in range(replicas)]


def _start(places: Any, asked: Asked, replicas: int) -> None:
    global _recommender
    Follower().end_with(os.getppid())
    if (devices := places.get()) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    else:
        os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // replicas))
    _recommender = asked.load()
    # first of all at the exit, which otherwise waits for the engine's process, and that for the end of this one
    util.Finalize(None, _recommender.close, exitpriority=0)


def _write(chats: list[Chat], k: int) -> pa.Table:
    assert _recommender is not None  # _start
    return recommend_part(_recommender, chats, k)


# ---- a cluster


class RayWorker:
    """A worker of Ray Data: parts as JSON in, their tables as bytes out."""

    def __init__(self, asked: Asked):
        self.asked, self.recommender = asked, asked.load()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        written = []
        for text in batch["chats"]:
            table = recommend_part(self.recommender, [Chat(*chat) for chat in json.loads(text)], self.asked.k)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            written.append(sink.getvalue().to_pybytes())
        return {"part": batch["part"], "table": written}


def write_on_cluster(
    parts: Iterator[Part], asked: Asked, replicas: int | None, address: str
) -> Iterator[tuple[int, pa.Table]]:
    """Ray Data over the cluster at `address`: so many actors, each with its engine. None: one for every
    `tensor_parallel` GPUs of the cluster. The model, the catalog and what they need lie on storage of all nodes."""
    import ray

    packages = [str(ROOT / name) for name in ("convrec", "recipes", "data_prep")]
    try:
        ray.init(address, runtime_env={"py_modules": packages}, log_to_driver=False)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        raise UserError(f"--address {address}: {error} (where it asks for a token: RAY_AUTH_MODE=token)") from None
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        count = replicas or max(1, gpus // asked.tensor_parallel)
        if gpus and count * asked.tensor_parallel > gpus:
            raise UserError(f"--replicas {count} of {asked.tensor_parallel} GPUs each: the cluster has {gpus} GPUs")
        rows = [{"part": number, "chats": json.dumps(chats)} for number, chats in parts]
        if not rows:
            return
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            RayWorker,
            fn_constructor_args=(asked,),
            compute=ray.data.ActorPoolStrategy(size=min(count, len(rows))),
            batch_size=1,
            num_gpus=asked.tensor_parallel if gpus else None,
        )
        for row in dataset.iter_rows():
            with pa.ipc.open_stream(row["table"]) as stream:
                yield int(row["part"]), stream.read_all()
    finally:
        ray.shutdown()
