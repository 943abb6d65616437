"""Write lists for the conversations in a file, without ground truth, with a trained model and its catalog.

The columns of CHATS and OUT: docs/how-to/recommend-file.md. After an interruption, the same command resumes.
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
from convrec.titles.catalog import load_catalog, print_problems
from recipes.batch.chats import read_chats
from recipes.batch.parts import Parts
from recipes.batch.replicas import load
from recipes.options.recommend import RecommendOptions


def recommend(options: RecommendOptions) -> dict[str, Any]:
    """Write --out.

    Returns:
        {"rows": conversations, "short": lists with fewer items than asked for, None if all lists existed,
        "written": rows written now}.

    Raises:
        UserError: An option, a file or the model cannot be used; before an engine starts.
    """
    out = Path(options.out)
    source = Path(options.chats)
    catalog = Path(options.catalog)
    if out.suffix != ".parquet":
        raise UserError(
            "recommend.out-not-parquet", f"--out {out}: not a parquet file. Use a name that ends in .parquet."
        )
    placement = Placement(options.placement.replicas, options.placement.tensor_parallel)
    items = load_catalog(catalog)
    print_problems(catalog, items.problems)
    columns = read_columns(catalog, items).schema
    check_columns(options.mentions.show, columns, "--show")
    unread: set[str] = set()
    rows = sum(1 for _ in read_chats(source, unread, columns))
    write_mentions(options.mentions.train, catalog)
    model = find_model(options.model, catalog, options.item, options.num_items)
    settings = {"item": model.item, "num_items": model.lists.num_items, "max_prompt_length": options.max_prompt_length}
    settings |= {"show": [*options.mentions.show], "why": options.why}
    model.check(options.retrieval)
    if options.retrieval:
        load_notes(options.retrieval, fuses=not model.candidates)
        settings |= {"retrieval": str(options.retrieval.absolute()), "weighed": file_hash(options.retrieval / NOTES)}
    request = {
        "model": model.version,
        "catalog": file_hash(catalog),
        "chats": file_hash(source),
        "k": options.k,
        **settings,
    }
    parts = Parts(out, request, GPU_BATCH if visible_gpus() else CPU_BATCH)
    with parts.lock():
        if not options.overwrite and parts.is_done():
            return {"rows": rows, "short": None, "written": 0}
        if unread:
            print(f"{source}: ignored columns: {', '.join(sorted(unread))}", file=sys.stderr)
        if parts.begin():
            print(f"{parts.folder}: replacing lists of another request", file=sys.stderr)
        done = parts.count_rows()
        # the checkpoint's path: if the run still trains, each replica could find another best one
        replica_settings = {"model": model.path, "catalog": str(catalog), "max_items": options.k, **settings}
        replica_settings["tensor_parallel"] = options.placement.tensor_parallel
        replica_settings["catalog_sha256"] = request["catalog"]
        log = out.with_name(f"{out.name}.log")
        if done < rows:
            tqdm.write(f"lists for {rows - done} conversations, full log in {log}", file=sys.stderr)
            bar = Progress(total=rows, initial=done, unit=" lists")
            with bar, placement.open(load, replica_settings, log) as pool:
                for _, table in pool.answers(parts.iter_missing(read_chats(source))):
                    parts.write_part(table)
                    bar.update(table.num_rows)
        short = parts.finish(rows)
        report_unknown_items(out)
        return {"rows": rows, "short": short, "written": rows - done}


def report_unknown_items(lists: Path) -> None:
    """Print how many names in the conversations are not in the catalog, and the first five."""
    names = [name for row in pq.read_table(lists, columns=["unknown"])["unknown"].to_pylist() for name in row or ()]
    if names:
        first = ", ".join(map(repr, [*dict.fromkeys(names)][:5]))
        fix = "Write ids or `Title (Year)`, several as a JSON list or separated by |. The column unknown has all."
        print(f"{lists}: {len(names)} names are not in the catalog: {first}. {fix}", file=sys.stderr)


@command(RecommendOptions)
def main(options: RecommendOptions) -> int:
    """Write lists; return the exit status."""
    done = recommend(options)
    if not done["written"] and done["short"] is None:
        print("nothing to do: these lists exist")
    else:
        print(f"{done['rows']} lists, {done['short']} of them short; {done['rows'] - done['written']} existed before")
    return 0
