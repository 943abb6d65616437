"""Ratings -> conversations, in the folder that `convrec data own` writes. docs/how-to/data.md

What a user liked becomes a question ("I liked A, B and C. What next?"), and the next items are what is wanted.
"""

import argparse
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from convrec.data.damage import BadRecord, Damage
from convrec.data.records import Records, read_records
from convrec.errors import UserError, says_user_errors
from convrec.lists.matching import Matcher
from convrec.options import parse, parser_of
from convrec.progress import Progress
from data_prep.own import FILES, add_output_options, format_summary, write_data
from data_prep.own_data import NAMES
from data_prep.own_data.catalog import read_catalog
from data_prep.own_data.histories import cut, in_order, rows_of
from data_prep.own_data.ratings import ROLES, read_ratings
from data_prep.own_data.rows import SPLITS
from data_prep.own_data.splits import Borders, SplitRule, borders_at_shares, check_rule
from data_prep.tables import check_out, hash64, split_by_hash

# MovieLens' items without a header: what divides their columns, and the first of these
WITHOUT_HEADER = {".dat": ("::", ("item_id", "title", "genres")), ".item": ("|", ("item_id", "title"))}


def convert_ratings(given: argparse.Namespace) -> dict[str, Any]:
    """Check and write; returns what summary.json holds (`write_data`). given: see --help. Raises UserError, and then
    OUT is as it was."""
    path, items_path, out = Path(given.ratings), Path(given.items or given.ratings), Path(given.out)
    check_out(out, given.overwrite, FILES)
    damage = Damage(given.skip_damaged, end="Nothing was written.")
    borders = check_rule(given.rule)
    if missing := [file for file in (path, items_path) if not file.is_file()]:
        raise UserError(f"{missing[0]}: no such file; name one file of ratings, and one of items")
    table, num_read = read_ratings(path, given.columns, given.min_rating, damage)
    users, names = (table[name].chunk(0) for name in ("user", "item"))
    ids = names.dictionary.to_pylist()
    by_title = enumerate({"item_id": title, "title": title} for title in ids)
    read = read_catalog(items_path, damage, entries=item_records(items_path, damage) if given.items else by_title)
    damage.check([items_path], len(read.table))
    catalog = read.catalog()
    row_of = {str(name): row for row, name in enumerate(catalog.item_ids or ())}
    items_E = np.array([row_of.get(name, -1) for name in ids], np.int32)[names.indices.to_numpy()]
    if not (items_E >= 0).any():
        raise UserError(f"{path}: of its {len(table):,} ratings none is of an item in {items_path}; give their items")
    users_E, times_E = users.indices.to_numpy(), table["time"].to_numpy() if "time" in table.column_names else None
    order_E = in_order(users_E, items_E, times_E)
    num_unknown = int((items_E < 0).sum())
    users_E, items_E, times_E = users_E[order_E], items_E[order_E], None if times_E is None else times_E[order_E]
    split_E, splits = _split(users.dictionary, users_E, times_E, given, borders)
    cuts_R6 = cut(
        users_E, items_E, split_E, splits["by"] == "time", given.wanted, given.max_history, given.rows_per_user
    )
    num_users, num_twice = len(users.dictionary), len(table) - num_unknown - len(order_E)
    told = [
        f"{num_read:,} ratings, {num_read - len(table):,} of them too low or damaged, {num_unknown:,} of items that "
        f"{items_path} lacks, {num_twice:,} of an item that the user had rated before",
        f"{num_users - len(np.unique(cuts_R6[:, -1])):,} of {num_users:,} users rated too little for a row",
    ]
    if given.min_rating is None:
        told.append("every rating counts as liked; --min-rating 4 takes those from 4 on")
    named = pa.DictionaryArray.from_arrays(users_E, users.dictionary)
    rows = Progress(rows_of(cuts_R6, items_E, named, catalog, given.seed), "writing", len(cuts_R6), unit=" rows")
    about = {"read": told, "splits": splits, "warnings": []}
    matcher, split_of = Matcher(catalog), attrgetter("split")
    return write_data(out, read, matcher, rows, split_of, given.item, given.num_items, damage, about)


def _split(
    users: pa.Array, users_E: np.ndarray, times_E: np.ndarray | None, given: argparse.Namespace, borders: Borders
) -> tuple[np.ndarray, dict[str, Any]]:
    """(place in SPLITS of each rating, what summary.json says of it). Raises UserError."""
    rule = given.rule
    if not any(rule):
        return np.zeros(len(users_E), np.int8), {"by": "nothing: all is train"}
    if (given.split_by or ("user" if times_E is None else "time")) == "user":
        if any(borders):
            raise UserError("--validation-from and --test-from go by time; give --validation-share and --test-share")
        shares = (rule.validation_share, rule.test_share)
        splits_U = (SPLITS.index(split_by_hash(hash64(name.as_py()), *shares)) for name in users)
        return np.fromiter(splits_U, np.int8)[users_E], {"by": "user"}
    if times_E is None:
        raise UserError(f"{given.ratings}: no column for the time, which --split-by time needs; --columns time=NAME")
    if not any(borders):
        borders = borders_at_shares(times_E, rule.validation_share, rule.test_share)
    return borders.places(times_E), borders.described()


def item_records(path: Path, damage: Damage) -> Records:
    """Id, title and what else a catalog has of every item, in any of MovieLens' forms or with a header."""
    if path.suffix in WITHOUT_HEADER:
        divider, names = WITHOUT_HEADER[path.suffix]
        content = path.read_bytes()
        try:
            lines = content.decode("utf-8").split("\n")
        except UnicodeDecodeError:  # 100K and 1M; 10M is UTF-8
            lines = content.decode("latin-1").split("\n")
        for line, text in enumerate(filter(None, lines), 1):
            yield line, dict(zip(names, text.rstrip("\r").split(divider), strict=False))
        return
    for number, record in read_records(path, damage):
        plain = {key.lower().replace("_", ""): cell for key, cell in record.items()}
        item_id, title = (
            next((plain[one] for one in known if one in plain), "") for known in (ROLES["item"], NAMES["titles"])
        )
        kept = {name: record[name] for name in ("year", "genres", "display", "aliases") if name in record}
        if item_id in (None, ""):
            told = "no id of an item (the keys are %s); call it item_id"
            damage.add(path, number, BadRecord(told, ", ".join(record)))
        else:
            yield number, {"item_id": str(item_id), "title": title} | kept


@says_user_errors
def main(arguments: list[str]) -> int:
    parser = parser_of("data ratings", __doc__)
    add_output_options(parser, "ratings")
    parser.set_defaults(columns=())
    given = parse(parser, arguments, "data ratings", "output")
    given.rule = SplitRule(*(getattr(given, name) for name in SplitRule._fields))
    print(format_summary(convert_ratings(given), given.out))
    return 0
