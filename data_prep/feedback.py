"""Turn the feedback log of `convrec serve --feedback` into the tables of `convrec data own`.

docs/how-to/collect-feedback.md

OUT.jsonl has the rows as `convrec data own` reads them, the folder OUT the tables.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import write_jsonl
from convrec.base.options import command
from convrec.data.damage import BadRecord, Damage
from convrec.data.records import read_records
from convrec.data.schema import SPEAKERS, TURN
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.item import parse_item
from data_prep.options.feedback import FeedbackOptions
from data_prep.own import convert_own, format_summary, make_split_rule

FILES = "feedback-*.jsonl"  # in --state; recipes/serving/feedback.py writes them and documents their lines
POSITIVE_EVENTS = {"click", "like", "purchase"}
ROLES = {speaker: role for role, speaker in SPEAKERS.items()}


def iter_rows(
    files: Sequence[Path], catalog: Catalog, damage: Damage, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield the records for `convrec data own`, in the order of the lists. All events are held in memory.

    Args:
        files: the log, in order.
        catalog: the catalog that was served.
        damage: collects lines that are neither lists nor events.
        counts: counts the lists and events that give no row, by reason.
    """
    events: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # list -> item -> events
    for record in _iter_records(files, damage):
        if "event" in record:
            events[record["list_id"]][record["item_id"]].add(record["event"])
    ids = map(str, catalog.item_ids or range(len(catalog)))
    title_by_id = dict(zip(ids, catalog.titles, strict=True))
    for record in _iter_records(files, Damage()):
        if "items" not in record:
            continue
        events_by_item = events.pop(record["list_id"], {})
        shown = {item["item_id"]: [item["title"], item["year"]][: 1 + catalog.dated] for item in record["items"]}
        chosen = [
            shown[name]
            for name, kinds in events_by_item.items()
            if name in shown and kinds & POSITIVE_EVENTS and "dislike" not in kinds
        ]
        counts["events for items that are not in their list"] += len(events_by_item.keys() - shown.keys())
        counts["lists from which nothing was clicked, liked or purchased"] += not chosen
        if chosen:
            _, *parts = TURN.split(record["conversation"])  # the service made sure that no turn contains another
            pairs = zip(parts[::2], parts[1::2], strict=True)
            turns = [{"role": ROLES[speaker], "content": content} for speaker, content in pairs]
            seen = [[_find_seen_title(name, title_by_id, catalog)] for name in record["seen"]]
            row = {"id": record["list_id"], "time": record["time"], "conversation": turns, "seen": seen}
            yield row | {"ground_truth": chosen, "exposure": list(shown.values())}
    counts["events for lists that are not in the log"] += sum(map(len, events.values()))


def _iter_records(files: Sequence[Path], damage: Damage) -> Iterator[dict[str, Any]]:
    for path in files:
        for number, record in read_records(path, damage):
            if {"list_id", "time"} <= record.keys():
                yield record
            else:
                problem = BadRecord("feedback.unknown-record", "neither a list nor an event; remove the line")
                damage.add(path, number, problem)


def _find_seen_title(name: str | int, title_by_id: dict[str, str], catalog: Catalog) -> str:
    """Return a seen item's title as Recommender does: numbers are ids, and so are strings if the catalog has ids."""
    title = title_by_id.get(str(name)) if catalog.item_ids or isinstance(name, int) else None
    item = parse_item(str(name), catalog.dated)
    return title or (item.title if item else str(name))


@command(FeedbackOptions)
def main(options: FeedbackOptions) -> int:
    """Convert a feedback log; return the exit status."""
    state = Path(options.state)
    output = options.output
    rows = Path(f"{Path(options.out)}.jsonl")
    files = sorted(state.glob(FILES))
    if not files:
        raise UserError(
            "feedback.missing-log",
            f"--state {state}: no {FILES}; give the --state of a service started with --feedback",
        )
    if rows.exists() and not output.overwrite:
        raise UserError(
            "feedback.already-there", f"{rows}: already there; give --overwrite to replace it, or another --out"
        )
    damage = Damage(output.skip_damaged)
    counts = Counter[str]()
    records = list(iter_rows(files, load_catalog(options.catalog), damage, counts))
    damage.check(files, counts.total() + len(records))
    for what, count in (+counts).items():
        print(f"{count:,} {what} left out")
    if not records:
        raise UserError(
            "feedback.no-positive-event", f"--state {state}: nothing was clicked, liked or purchased from any list"
        )
    write_jsonl(rows, records)
    summary = convert_own(
        [rows],
        options.catalog,
        options.out,
        item=output.item,
        num_items=output.num_items,
        rule=make_split_rule(output),
        overwrite=output.overwrite,
        skip_damaged=output.skip_damaged,
        progress=True,
    )
    print(format_summary(summary, options.out))
    return 0
