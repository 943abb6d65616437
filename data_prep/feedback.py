"""What became of the lists of `convrec serve --feedback` -> the tables of `convrec data own`.

The guide is docs/how-to/collect-feedback.md.
OUT.jsonl has the rows as `convrec data own` reads them, the folder OUT what it makes of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import write_jsonl
from convrec.base.options import command
from convrec.data.damage import Damage
from convrec.data.records import read_records
from convrec.data.schema import SPEAKERS, TURN
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.item import parse_item
from data_prep.options.feedback import FeedbackOptions
from data_prep.own import convert_own, format_summary, split_rule

FILES = "feedback-*.jsonl"  # in --state; recipes/serving/feedback.py writes them, and says what is in a line
WANTED = {"click", "like", "purchase"}  # events; an impression is none
ROLES = {speaker: role for role, speaker in SPEAKERS.items()}


def iter_rows(
    files: Sequence[Path], catalog: Catalog, damage: Damage, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """What `convrec data own` reads, in the order of the lists; counts: what is no row. Memory holds the events."""
    events: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # of lists and their items
    for record in _records(files, damage):
        if "event" in record:
            events[record["list_id"]][record["item_id"]].add(record["event"])
    ids = map(str, catalog.item_ids or range(len(catalog)))
    title_by_id = dict(zip(ids, catalog.titles, strict=True))
    for record in _records(files, Damage()):
        if "items" not in record:
            continue
        happened = events.pop(record["list_id"], {})
        shown = {item["item_id"]: [item["title"], item["year"]][: 1 + catalog.dated] for item in record["items"]}
        wanted = [
            shown[name]
            for name, kinds in happened.items()
            if name in shown and kinds & WANTED and "dislike" not in kinds
        ]
        counts["events of items that their list does not have"] += len(happened.keys() - shown.keys())
        counts["lists of which nothing was clicked, liked or purchased"] += not wanted
        if wanted:
            _, *parts = TURN.split(record["conversation"])  # the service has seen to it that no turn has another within
            turns = [{"role": ROLES[who], "content": said} for who, said in zip(parts[::2], parts[1::2], strict=True)]
            seen = [[_seen(name, title_by_id, catalog)] for name in record["seen"]]
            row = {"id": record["list_id"], "time": record["time"], "conversation": turns, "seen": seen}
            yield row | {"ground_truth": wanted, "exposure": list(shown.values())}
    counts["events of lists that are not kept"] += sum(map(len, events.values()))


def _records(files: Sequence[Path], damage: Damage) -> Iterator[dict[str, Any]]:
    for path in files:
        for number, record in read_records(path, damage):
            if {"list_id", "time"} <= record.keys():
                yield record
            else:
                damage.add(path, number, "neither a list nor an event; take the line out")


def _seen(name: str | int, title_by_id: dict[str, str], catalog: Catalog) -> str:
    """As Recommender reads it: a number is an id, and a text where the catalog has ids; else it is a title."""
    title = title_by_id.get(str(name)) if catalog.item_ids or isinstance(name, int) else None
    item = parse_item(str(name), catalog.dated)
    return title or (item.title if item else str(name))


@command(FeedbackOptions)
def main(options: FeedbackOptions) -> int:
    state = Path(options.state)
    output = options.output
    rows = Path(f"{Path(options.out)}.jsonl")
    files = sorted(state.glob(FILES))
    if not files:
        raise UserError(f"{state}: no {FILES}; give the --state of a service that was started with --feedback")
    if rows.exists() and not output.overwrite:
        raise UserError(f"{rows}: already there; give --overwrite to replace it, or another --out")
    damage = Damage(output.skip_damaged)
    counts = Counter[str]()
    found = list(iter_rows(files, load_catalog(options.catalog), damage, counts))
    damage.check(files, counts.total() + len(found))
    for what, count in (+counts).items():
        print(f"{count:,} {what} left out")
    if not found:
        raise UserError(f"{state}: of no list was anything clicked, liked or purchased")
    write_jsonl(rows, found)
    summary = convert_own(
        [rows],
        options.catalog,
        options.out,
        item=output.item,
        num_items=output.num_items,
        rule=split_rule(output),
        overwrite=output.overwrite,
        skip_damaged=output.skip_damaged,
        progress=True,
    )
    print(format_summary(summary, options.out))
    return 0
