"""Lists for the conversations of a file, without ground truth, from a trained model and its catalog.

    convrec recommend --model checkpoints/books --catalog data/books/catalog.parquet --in chats.jsonl --out L.parquet

Conversations are .jsonl, .csv or .parquet with `conversation` (or `messages`) and, as they are there, `id`, `seen`,
`allow` and `exclude`; the tables of training do as well. OUT has a row for each, in their order: row, id, items
(item_id, title, year, rank, score), reason (why a list is short) and prompt_truncated. Stopped, the same command goes
on where it was.
"""

if __name__ == "__main__":  # before imports that take seconds
    from convrec.runs import supervisor

    supervisor.begin()

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.errors import UserError
from convrec.files import file_hash
from convrec.progress import Progress
from convrec.runs import guard, supervisor
from convrec.serving.served_model import find_model
from recipes.batch.chats import read_chats
from recipes.batch.parts import Parts
from recipes.batch.replicas import Asked, Part, write_here, write_in_processes, write_on_cluster
from recipes.launch.console import Console, output_to

ROWS_A_PART = {True: 1024, False: 128}  # with and without a GPU, as convrec.generation


def recommend(
    *,
    model: str | Path,
    catalog: str | Path,
    chats: str | Path,
    out: str | Path,
    k: int = 20,
    item: str | None = None,
    num_items: int | None = None,
    max_prompt_length: int = 2048,
    tensor_parallel: int = 1,
    replicas: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Write OUT; {"rows", "short", "written": rows that were not there from an earlier start}.

    replicas: engines; None: one for every `tensor_parallel` GPUs, one on a CPU. address: of a Ray cluster; None: this
    node. Others as Recommender.load. Raises UserError before an engine starts.
    """
    out, source = Path(out), Path(chats)
    if out.suffix != ".parquet":
        raise UserError(f"--out {out}: give a name that ends in .parquet")
    for option, number in (("--k", k), ("--tensor-parallel", tensor_parallel), ("--replicas", replicas)):
        if number is not None and number < 1:
            raise UserError(f"{option} {number}: at least 1")
    unread: set[str] = set()
    rows = sum(1 for _ in read_chats(source, unread))
    found = find_model(model, Path(catalog), item, num_items)
    gpus = _gpus()
    settings = {"item": found.item, "num_items": found.lists.num_items, "max_prompt_length": max_prompt_length}
    what = {"model": found.version, "catalog": file_hash(catalog), "chats": file_hash(source), "k": k, **settings}
    parts = Parts(out, what, ROWS_A_PART[gpus > 0])
    if overwrite:
        out.unlink(missing_ok=True)
    elif parts.is_done():
        return {"rows": rows, "short": None, "written": 0}
    if unread:
        print(f"{source}: not read: {', '.join(sorted(unread))}", file=sys.stderr)
    if parts.begin():
        print(f"{parts.folder}: lists of another request are replaced", file=sys.stderr)
    done = parts.rows_done()
    asked = Asked(str(Path(model).absolute() if Path(model).exists() else model), str(Path(catalog).absolute()), k,
                  tensor_parallel, settings)  # fmt: skip
    console, log = Console(), out.with_name(f"{out.name}.log")
    if done < rows:
        console.say(f"lists for {rows - done} conversations, full log in {log}")
        bar = Progress(total=rows, initial=done, unit=" lists", file=console.stream, disable=not progress)
        with output_to(log), bar:  # vLLM's words are for the log
            for number, table in _written(parts.missing(read_chats(source)), asked, replicas, address, gpus):
                parts.keep(number, table)
                bar.update(table.num_rows)
    return {"rows": rows, "short": parts.finish(), "written": rows - done}


def _written(
    parts: Iterator[Part], asked: Asked, replicas: int | None, address: str | None, gpus: int
) -> Iterator[tuple[int, pa.Table]]:
    if address is not None:
        yield from write_on_cluster(parts, asked, replicas, address)
        return
    count = replicas or max(1, gpus // asked.tensor_parallel)
    with guard.guarded("") as temporary:  # whatever happens, no engine is left
        supervisor.note(temporary=str(temporary))
        yield from write_here(parts, asked) if count == 1 else write_in_processes(parts, asked, count)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.recommend", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", required=True, help="run folder (its best checkpoint), RUN/global_step_N, Hugging Face folder or id")
    add("--catalog", required=True, help=".parquet or .pkl")
    add("--in", dest="chats", required=True, metavar="CHATS", help=".jsonl, .csv or .parquet")
    add("--out", required=True, help=".parquet to write")
    add("--k", type=int, default=20, help="items of a list (%(default)s)")
    add("--item", help="what the prompt calls an item (as in training, else movie)")
    add("--num-items", type=int, help="items that the prompt asks for (as in training, else 20)")
    add("--max-prompt-length", type=int, default=2048, help="tokens; longer ones lose their beginning (%(default)s)")
    add("--tensor-parallel", type=int, default=1, help="GPUs of one engine (%(default)s)")
    add("--replicas", type=int, help="engines (one for every --tensor-parallel GPUs; 1 on a CPU)")
    add("--address", help="of a Ray cluster (auto, HOST:6379), over which Ray Data divides the work")
    add("--overwrite", action="store_true", help="replace an --out that is there")
    try:
        done = recommend(**vars(parser.parse_args(arguments)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not done["written"] and done["short"] is None:
        print("nothing to do: these lists are there")
    else:
        print(
            f"{done['rows']} lists, {done['short']} of them short; {done['rows'] - done['written']} were there before"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
