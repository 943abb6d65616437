"""What became of the lists of `convrec serve --feedback` -> the tables of `convrec data own`. docs/how-to/data.md

    convrec data feedback --state outputs/serve --catalog data/books/catalog.parquet --item book \\
        --validation-share 0.2 --out data/clicks

A list of which an item was clicked, liked or purchased is a row: its conversation, those items as ground truth, and all
that was shown, best first, as `exposure`. An item that was disliked is no ground truth. OUT.jsonl has the rows as
`convrec data own` reads them, the folder OUT what it makes of them.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from convrec.data.damage import BadRecord, Damage
from convrec.data.records import read_records
from convrec.data.schema import SPEAKERS, TURN
from convrec.errors import UserError, says_user_errors
from convrec.files import write_jsonl
from convrec.lists.catalog import Catalog, load_catalog
from convrec.lists.ranks import parse_item, parse_items
from data_prep.own import add_table_options, convert_own, format_summary
from data_prep.own_data.splits import SplitRule

FILES = "feedback-*.jsonl"  # in --state; recipes/serving/feedback.py writes them, and says what is in a line
ROLES = {speaker: role for role, speaker in SPEAKERS.items()}
_LIST = {"list_id", "time", "conversation"}
LINES = ({"list_id", "item_id", "event"}, _LIST | {"items"}, _LIST | {"answer"})  # what each has


def rows_of(files: Sequence[Path], catalog: Catalog, damage: Damage, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """What convrec.data.own reads, in the order of the lists. counts: what is no row. Memory holds the events alone."""
    events: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # of lists and their items
    for record in _records(files, damage):
        if "event" in record:
            events[record["list_id"]][record["item_id"]].add(record["event"])
    ids = map(str, catalog.item_ids or range(len(catalog)))
    known = dict(zip(ids, map(_cell, catalog.titles, catalog.years), strict=True))
    for record in _records(files, Damage()):
        if "event" in record:
            continue
        happened = events.pop(record["list_id"], {})
        if "items" in record:
            shown = {item["item_id"]: _cell(item["title"], item["year"]) for item in record["items"]}
            exposure = list(shown.values())
        else:  # a text: its lines that read as items, and which of the catalog's were clicked is not checked
            shown = known
            exposure = [_cell(*item) for item in parse_items(record["answer"], dated=catalog.dated) if item]
        counts["events of items that their list does not have"] += len(happened.keys() - shown.keys())
        wanted = [shown[name] for name, kinds in happened.items() if name in shown and "dislike" not in kinds]
        counts["lists of which nothing was clicked, liked or purchased"] += not wanted
        if wanted:
            yield {
                "id": record["list_id"],
                "time": record["time"],
                "conversation": _turns(record["conversation"]),
                "seen": [_seen(name, known, catalog) for name in record.get("seen", ())],
                "ground_truth": wanted,
                "exposure": exposure,
            }
    counts["events of lists that are not kept"] += sum(map(len, events.values()))


def _records(files: Sequence[Path], damage: Damage) -> Iterator[dict[str, Any]]:
    for path in files:
        for number, record in read_records(path, damage):
            if any(names <= record.keys() for names in LINES):
                yield record
            else:
                damage.add(path, number, BadRecord("no list and no event; take the line out"))


def _cell(title: str, year: int | None) -> list[Any]:
    return [title, year] if year else [title]


def _seen(name: str | int, known: dict[str, list[Any]], catalog: Catalog) -> list[str]:
    """As Recommender reads it: a number is an id, a text one where the catalog has ids, else a title."""
    if str(name) in known and (catalog.item_ids or isinstance(name, int)):
        return known[str(name)][:1]
    item = parse_item(str(name), catalog.dated)
    return [item.title if item else str(name)]


def _turns(text: str) -> list[dict[str, str]]:
    """The service has seen to it that nothing within a turn begins as one."""
    _, *parts = TURN.split(text)
    return [{"role": ROLES[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)]


@says_user_errors
def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="convrec data feedback", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--state", type=Path, default=Path("outputs/serve"), help="that of the service (%(default)s)")
    parser.add_argument("--catalog", required=True, metavar="FILE", help="what was served, as .parquet")
    add_table_options(parser)
    given = vars(parser.parse_args(arguments))
    rule, state = SplitRule(*(given.pop(name) for name in SplitRule._fields)), given.pop("state")
    if not given["out"]:
        parser.error("give --out")
    files = sorted(state.glob(FILES))
    if not files:
        raise UserError(f"{state}: no {FILES}; give the --state of a service that was started with --feedback")
    rows, damage, counts = Path(f"{Path(given['out'])}.jsonl"), Damage(given["skip_damaged"]), Counter[str]()
    if rows.exists() and not given["overwrite"]:
        raise UserError(f"{rows}: already there; give --overwrite to replace it, or another --out")
    found = list(rows_of(files, load_catalog(given["catalog"]), damage, counts))
    damage.check(files, len(found))
    for what, count in counts.items():
        if count:
            print(f"{count:,} {what} left out")
    if not found:
        raise UserError(f"{state}: of no list was anything clicked, liked or purchased")
    write_jsonl(rows, found)
    summary = convert_own([rows], **given, rule=rule, progress=True)
    print(format_summary(summary, given["out"]))
    return 0
