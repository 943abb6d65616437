"""Lists for the conversations of a file, without ground truth, from a trained model and its catalog.

Columns of CHATS and OUT: docs/how-to/recommend-file.md. Stopped, the same command goes on where it was.
"""

import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.base.files import file_hash
from convrec.base.options import command
from convrec.base.progress import Progress
from convrec.inference.engines.placement import Placement, visible_gpus
from convrec.inference.generate import CPU_BATCH, GPU_BATCH
from convrec.inference.served_catalog.columns import check_columns, read_columns
from convrec.inference.served_catalog.mentions import write_mentions
from convrec.inference.served_model import find_model
from convrec.retrieval.folder import NOTES, load_notes
from convrec.titles.catalog import load_catalog, tell_problems
from recipes.batch.chats import read_chats
from recipes.batch.parts import Parts
from recipes.batch.replicas import load
from recipes.options.recommend import RecommendOptions


def recommend(options: RecommendOptions) -> dict[str, Any]:
    """Write --out; {"rows", "short", "written": rows that were not there from an earlier start}.

    Raises UserError before an engine starts.
    """
    out = Path(options.out)
    source = Path(options.chats)
    catalog = Path(options.catalog)
    if out.suffix != ".parquet":
        raise UserError(f"--out {out}: give a name that ends in .parquet")
    placement = Placement(options.placement.replicas, options.placement.tensor_parallel)
    items = load_catalog(catalog)
    tell_problems(catalog, items.problems)
    columns = read_columns(catalog, items).schema
    check_columns(options.mentions.show, columns, "--show")
    unread: set[str] = set()
    rows = sum(1 for _ in read_chats(source, unread, columns))
    write_mentions(options.mentions.train, catalog)
    found = find_model(options.model, catalog, options.item, options.num_items)
    settings = {"item": found.item, "num_items": found.lists.num_items, "max_prompt_length": options.max_prompt_length}
    settings |= {"show": [*options.mentions.show], "why": options.why}
    found.check(options.retrieval)
    if options.retrieval:
        load_notes(options.retrieval, fuses=not found.candidates)
        settings |= {"retrieval": str(options.retrieval.absolute()), "weighed": file_hash(options.retrieval / NOTES)}
    what = {
        "model": found.version,
        "catalog": file_hash(catalog),
        "chats": file_hash(source),
        "k": options.k,
        **settings,
    }
    parts = Parts(out, what, GPU_BATCH if visible_gpus() else CPU_BATCH)
    with parts.held():
        if not options.overwrite and parts.is_done():
            return {"rows": rows, "short": None, "written": 0}
        if unread:
            print(f"{source}: not read: {', '.join(sorted(unread))}", file=sys.stderr)
        if parts.begin():
            print(f"{parts.folder}: lists of another request are replaced", file=sys.stderr)
        done = parts.rows_done()
        # the checkpoint itself: of a run that still trains, each replica would find another best one
        asked = {"model": found.path, "catalog": str(catalog), "max_items": options.k, **settings}
        asked["tensor_parallel"] = options.placement.tensor_parallel
        log = out.with_name(f"{out.name}.log")
        if done < rows:
            tqdm.write(f"lists for {rows - done} conversations, full log in {log}", file=sys.stderr)
            bar = Progress(total=rows, initial=done, unit=" lists")
            with bar, placement.open(load, asked, log) as pool:
                for _, table in pool.answers(parts.missing(read_chats(source))):
                    parts.keep(table)
                    bar.update(table.num_rows)
        short = parts.finish(rows)
        tell_unknown(out)
        return {"rows": rows, "short": short, "written": rows - done}


def tell_unknown(lists: Path) -> None:
    """Say which names of the conversations the catalog lacks, the first five of them."""
    names = [name for row in pq.read_table(lists, columns=["unknown"])["unknown"].to_pylist() for name in row or ()]
    if names:
        first = ", ".join(map(repr, [*dict.fromkeys(names)][:5]))
        told = f"{len(names)} names are no items of the catalog: {first}"
        fix = "write ids or `Title (Year)`, in a cell a JSON list or | between them; the column unknown has all"
        print(f"{lists}: {told}; {fix}", file=sys.stderr)


@command(RecommendOptions)
def main(options: RecommendOptions) -> int:
    done = recommend(options)
    if not done["written"] and done["short"] is None:
        print("nothing to do: these lists are there")
    else:
        print(
            f"{done['rows']} lists, {done['short']} of them short; {done['rows'] - done['written']} were there before"
        )
    return 0
