"""Turn ratings into conversations, in the folder that `convrec data own` writes. docs/how-to/convert-ratings.md

The items that a user liked become a question ("I liked A, B and C. What next?"), the next items its ground truth.
"""

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.base.progress import Progress
from convrec.data.damage import Damage
from convrec.data.records import Records
from convrec.data.text_files import describe_encoding
from convrec.retrieval.train_ratings import TRAIN_RATINGS, write_train_ratings
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from data_prep.options.ratings import RatingsOptions
from data_prep.own import FILES, format_summary, make_split_rule, write_data
from data_prep.own_data.catalog import read_catalog
from data_prep.own_data.histories import cut_histories, iter_rows, order_ratings
from data_prep.own_data.items import iter_items
from data_prep.own_data.ratings import read_ratings
from data_prep.own_data.rows import SPLITS
from data_prep.own_data.splits import Borders, find_borders, parse_rule
from data_prep.tables import check_out, hash64, split_by_hash

OURS = FILES | {TRAIN_RATINGS}


@dataclass(frozen=True)
class Ratings:
    """E ratings of items of the catalog, sorted by user and time, each item once per user.

    Attributes:
        user_names: names of the users, indexed by users_E.
        users_E: numbers of the users.
        items_E: rows of the catalog.
        times_E: seconds since 1970; None if the file has no times.
    """

    user_names: pa.Array
    users_E: np.ndarray
    items_E: np.ndarray
    times_E: np.ndarray | None


def convert_ratings(options: RatingsOptions) -> dict[str, Any]:
    """Check the ratings and write --out.

    Args:
        options: see `convrec data ratings --help`.

    Returns:
        The content of summary.json (`write_data`).

    Raises:
        UserError: The files or options cannot be used; --out is unchanged.
    """
    path = Path(options.ratings)
    items_path = Path(options.items or options.ratings)
    out = Path(options.out)
    check_out(out, options.output.overwrite, OURS)
    damage = Damage(options.output.skip_damaged, end="Nothing was written.")
    borders = parse_rule(make_split_rule(options.output))
    _check_files(options, path, items_path)
    table, num_read = read_ratings(path, options.columns, options.min_rating, damage)
    items = read_catalog(items_path, damage, entries=_iter_item_records(options, items_path, table, damage))
    damage.check([items_path], len(items.table))
    catalog = items.build_catalog()
    ratings, num_unknown = _sort_ratings(table, catalog, path, items_path)
    split_E, splits = _split(ratings, options, borders)
    cuts_R6 = cut_histories(
        ratings.users_E,
        ratings.items_E,
        split_E,
        by_time=splits["by"] == "time",
        num_targets=options.wanted,
        max_history=options.max_history,
        rows=options.rows_per_user,
    )
    num_users = len(ratings.user_names)
    num_repeated = len(table) - num_unknown - len(ratings.items_E)
    notes = [
        f"{num_read:,} ratings, {num_read - len(table):,} of them too low or damaged, {num_unknown:,} for items that "
        f"{items_path} lacks, {num_repeated:,} for an item that the user had rated before",
        f"{num_users - len(np.unique(cuts_R6[:, -1])):,} of {num_users:,} users have too few ratings for a row",
    ]
    notes += filter(None, [describe_encoding(path)])
    if options.min_rating is None:
        notes.append("every rating counts as liked; --min-rating 4 leaves out ratings below 4")
    user_names_E = pa.DictionaryArray.from_arrays(ratings.users_E, ratings.user_names)
    rows = Progress(
        iter_rows(cuts_R6, ratings.items_E, user_names_E, catalog, options.seed), "writing", len(cuts_R6), unit=" rows"
    )
    about = {"read": notes, "splits": splits, "warnings": []}
    is_train_E = split_E == SPLITS.index("train")

    def write_ratings(folder: Path) -> None:
        write_train_ratings(folder, ratings.users_E[is_train_E], ratings.items_E[is_train_E], catalog)

    return write_data(
        out,
        items,
        Matcher(catalog),
        rows,
        split_of=attrgetter("split"),
        item=options.output.item,
        num_items=options.output.num_items,
        damage=damage,
        about=about,
        write_more=write_ratings,
    )


def _check_files(options: RatingsOptions, path: Path, items_path: Path) -> None:
    """Raise UserError if a file is missing."""
    if options.item_columns and not options.items:
        raise UserError("ratings.items-missing", "--item-columns: needs --items, the file whose columns it names")
    missing = [file for file in (path, items_path) if not file.is_file()]
    if missing:
        raise UserError(
            "ratings.missing-file", f"{missing[0]}: no such file; name one file of ratings and one of items"
        )


def _iter_item_records(options: RatingsOptions, items_path: Path, table: pa.Table, damage: Damage) -> Records:
    """Return the records of --items; without the option, the ids that the ratings name are also the titles."""
    if options.items:
        return iter_items(items_path, options.item_columns, damage)
    return enumerate({"item_id": name, "title": name} for name in table["item"].chunk(0).dictionary.to_pylist())


def _sort_ratings(table: pa.Table, catalog: Catalog, path: Path, items_path: Path) -> tuple[Ratings, int]:
    """Return the ratings of the catalog's items, and the number of the others. Raises UserError if none is left."""
    users, names = (table[name].chunk(0) for name in ("user", "item"))
    ids = names.dictionary.to_pylist()
    row_by_id = {str(name): row for row, name in enumerate(catalog.item_ids or ())}
    items_E = np.array([row_by_id.get(name, -1) for name in ids], np.int32)[names.indices.to_numpy()]
    if not (items_E >= 0).any():
        raise UserError(
            "ratings.no-known-item",
            f"{path}: none of its {len(table):,} ratings is for an item in {items_path}: ids there look like "
            f"{next(iter(row_by_id), 'none')!r}, here like {ids[0]!r}. Give the matching items, or name the id column "
            "with --item-columns item_id=THEIRS.",
        )
    users_E = users.indices.to_numpy()
    times_E = table["time"].to_numpy() if "time" in table.column_names else None
    order_E = order_ratings(users_E, items_E, times_E)
    ratings = Ratings(
        user_names=users.dictionary,
        users_E=users_E[order_E],
        items_E=items_E[order_E],
        times_E=None if times_E is None else times_E[order_E],
    )
    return ratings, int((items_E < 0).sum())


def _split(ratings: Ratings, options: RatingsOptions, borders: Borders) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the index into SPLITS of each rating, and the entry `splits` of summary.json. Raises UserError."""
    rule = make_split_rule(options.output)
    times_E = ratings.times_E
    if not any(rule):
        return np.zeros(len(ratings.users_E), np.int8), {"by": "nothing: all is train"}
    if (options.split_by or ("user" if times_E is None else "time")) == "user":
        if any(borders):
            raise UserError(
                "ratings.dates-need-times",
                "--validation-from and --test-from split by time, but these splits are by user; give "
                "--validation-share and --test-share",
            )
        shares = (rule.validation_share, rule.test_share)
        splits_U = (SPLITS.index(split_by_hash(hash64(name.as_py()), *shares)) for name in ratings.user_names)
        return np.fromiter(splits_U, np.int8)[ratings.users_E], {"by": "user"}
    if times_E is None:
        raise UserError(
            "ratings.no-time-column",
            f"--split-by time: {options.ratings} has no column for the time; name it: --columns time=NAME",
        )
    if not any(borders):
        borders = find_borders(times_E, rule.validation_share, rule.test_share)
    return borders.assign_splits(times_E), borders.to_json()


@command(RatingsOptions)
def main(options: RatingsOptions) -> int:
    """Convert ratings; return the exit status."""
    print(format_summary(convert_ratings(options), options.out))
    return 0
