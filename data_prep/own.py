"""Convert your own data set to the parquet that the recipes read.

docs/how-to/convert-conversations.md explains the keys of the files and the splits.

Every line is checked before anything is written; up to 20 problems are reported at once, with file, line and fix. Then
OUT appears as a whole. Every line stays a row; nothing is aggregated. Tables without rows are not written.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder, write_json
from convrec.base.options import command
from convrec.base.progress import Progress
from convrec.data.damage import REPORT, BadRecord, BadRow, Damage, collected, counted, format_place
from convrec.data.schema import RL_SCHEMA, SFT_SCHEMA, TRUTH, format_prompt, normalise_text, parse_conversation_id
from convrec.features.asking.attributes import load_attributes
from convrec.lists.settings import ListSettings
from convrec.titles.catalog import Catalog
from convrec.titles.item import NO_YEAR, Item, format_item
from convrec.titles.matching import Matcher
from data_prep.options.output import OutputOptions
from data_prep.options.own import OwnOptions
from data_prep.own_data.catalog import ParsedCatalog
from data_prep.own_data.preview import format_preview
from data_prep.own_data.rows import Row, reparse_item
from data_prep.own_data.source import ReadingOptions, open_source, parse_file_splits
from data_prep.own_data.splits import (
    SplitKey,
    SplitRule,
    assign_splits,
    describe_common_opening,
    parse_rule,
    select_splittable,
)
from data_prep.questions import add_questions
from data_prep.tables import (
    SampleIds,
    TableNumbers,
    check_out,
    describe_table,
    get_opening,
    hash64,
    is_known,
    message,
    open_table_writer,
)

TABLES = ("train", "sft_train", "validation", "sft_validation", "test", "validation_cold", "test_cold")
FILES = {f"{name}.parquet" for name in (*TABLES, "catalog")} | {"summary.json", REPORT}
NO_RULE = SplitRule()
GUESS_EVERYTHING = ReadingOptions()
# the row's own id, and the items shown for it, best first, as pairs like its ground truth; null if it has none
EXTRA_FIELDS = (pa.field("id", pa.string()), RL_SCHEMA.field(TRUTH).with_name("exposure"))


def convert_own(
    conversations: Sequence[str | Path],
    catalog: str | Path,
    out: str | Path,
    *,
    item: str = "movie",
    num_items: int = ListSettings.num_items,
    rule: SplitRule = NO_RULE,
    overwrite: bool = False,
    skip_damaged: float | None = None,
    progress: bool = False,
    ask: Sequence[str] | None = None,
    reading: ReadingOptions = GUESS_EVERYTHING,
) -> dict[str, Any]:
    """Check your own data set and write `out`.

    Args:
        conversations: files of conversations.
        catalog: the catalog's file.
        out: folder to write.
        item: what a prompt calls an item.
        num_items: items that a prompt asks for.
        rule: how rows are split; by default their own column decides, or all are train.
        overwrite: whether an existing `out` is replaced.
        skip_damaged: share of the rows, and of the items, that may be left out as damaged; None: none.
        progress: whether to show progress bars.
        ask: attributes that demonstrations ask about; None: none.
        reading: how the conversations are read.

    Returns:
        The content of summary.json (`write_data`).

    Raises:
        UserError: The data cannot be used; `out` is unchanged.
    """
    out = Path(out)
    paths = [Path(path) for path in conversations]
    check_out(out, overwrite, FILES)
    borders = parse_rule(rule)
    damage = Damage(skip_damaged, end="Nothing was written.")
    items, source = open_source(paths, Path(catalog), num_items, damage, reading)
    matcher = source.reader.matcher
    rows = Progress(source.iter_rows(damage), "reading", disable=not progress, unit=" rows")
    mentions: Counter[bool] = Counter()  # whether the catalog has the item -> number of ground truths
    keys = select_splittable(list(_iter_split_keys(rows, matcher, mentions, damage)), rule, damage)
    left_out = damage.rows()
    keys = [key for key in keys if (key.path, key.row) not in left_out]
    damage.check(paths, len(keys))
    if not keys:
        reasons = "; ".join([source.describe_emptiness(), *source.describe_reading()])
        raise UserError("conversations.none-left", f"{', '.join(map(str, paths))}: {reasons}")
    if mentions and not mentions[True]:
        raise UserError(
            "conversations.catalog-mismatch",
            f"{', '.join(map(str, paths))}: none of the {mentions[False]:,} ground truths is in {catalog}, so no list "
            "could ever have a hit; give the catalog that belongs to this data",
        )
    split_by_conversation, splits = assign_splits(keys, rule, borders)
    is_divided = len(set(split_by_conversation.values())) > 1 and keys[0].split is None
    warning = describe_common_opening(keys) if is_divided else ""

    sound = (row for path, number, row in source.iter_rows(Damage()) if (path, number) not in left_out)
    writing = Progress(sound, "writing", len(keys), disable=not progress, unit=" rows")
    about = {
        "read": source.describe_reading(),
        "splits": splits,
        "warnings": [warning] if warning else [],
        "ground_truths": {"known": mentions[True], "outside_catalog": mentions[False]},
    }
    return write_data(
        out,
        items,
        matcher,
        writing,
        split_of=lambda row: split_by_conversation[hash_conversation(row)],
        item=item,
        num_items=num_items,
        damage=damage,
        about=about,
        ask=ask,
    )


def _iter_split_keys(
    rows: Iterable[tuple[Path, int, Row]], matcher: Matcher, mentions: Counter[bool], damage: Damage
) -> Iterator[SplitKey]:
    """Yield what the first pass keeps for every sound row; problems of the others go to `damage`."""
    ids: dict[str, str] = {}  # id -> where it occurred first
    first_splits: dict[int, tuple[str, str]] = {}  # conversation -> its split and where it occurred first
    for path, number, row in rows:
        here = format_place(path, number)
        name = hash_conversation(row)
        problems: list[BadRecord] = []
        with collected(problems):
            _check_id(row, here, ids)
        with collected(problems):
            _check_split(row, first_splits.setdefault(name, (row.split, here)) if row.split else None)
        if problems:
            damage.add(path, number, BadRow(problems))
            continue
        mentions.update(is_known(matcher, pair) for pair in row.truth)
        yield SplitKey(
            path=path,
            row=number,
            conversation=name,
            time=row.time,
            split=row.split,
            is_named=row.conversation_id is not None,
        )


def _check_id(row: Row, here: str, ids: dict[str, str]) -> None:
    """Register a row's id. Raises BadRecord if an earlier row has it."""
    first = ids.setdefault(row.id, here) if row.id is not None else here
    if first != here:
        raise BadRecord(
            "conversations.repeated-id", "id %r is also the id of %s; give every row its own id, or none", row.id, first
        )


def _check_split(row: Row, first: tuple[str, str] | None) -> None:
    """Raise BadRecord if a row's split differs from that of its conversation.

    first: the conversation's first split and where it occurred; None if there is none.
    """
    if first is not None and first[0] != row.split:
        split, place = first
        raise BadRecord(
            "conversations.two-splits",
            "split is %s, but %s puts the same conversation into %s; put all its rows into one split",
            row.split,
            place,
            split,
        )


def hash_conversation(row: Row) -> int:
    """Return the 64-bit hash that identifies a row's conversation: of its id or, without one, of its first turns.

    Texts and ids that differ only in case or white space are one conversation, so that copies stay in one split.
    """
    if row.conversation_id is not None:
        return hash64(normalise_text(row.conversation_id))
    return hash64(normalise_text(get_opening(row.conversation)))


def write_data(
    out: Path,
    items: ParsedCatalog,
    matcher: Matcher,
    rows: Iterable[Row],
    *,
    split_of: Callable[[Row], str],
    item: str,
    num_items: int,
    damage: Damage,
    about: dict[str, Any],
    ask: Sequence[str] | None = None,
    write_more: Callable[[Path], None] = lambda folder: None,
) -> dict[str, Any]:
    """Write the tables, the catalog and summary.json.

    Args:
        out: folder to write; it appears as a whole.
        items: the catalog.
        matcher: of the catalog.
        rows: the rows.
        split_of: returns a row's split, one of TABLES.
        item: what a prompt calls an item.
        num_items: items that a prompt asks for.
        damage: damaged rows and items, which damaged.jsonl lists.
        about: "read", "splits", "warnings" and, if known, "ground_truths" {"known", "outside_catalog"}.
        ask: attributes that demonstrations ask about; None: none.
        write_more: writes additional files into the folder before it becomes `out`.

    Returns:
        The content of summary.json: {"files": {name: numbers}, "catalog": {"items", "dated", "never_matched",
        "merged"}, "read": sentences, "splits": {"by", ...}, "rows": counts, "warnings": sentences, "damaged": rows
        left out by reason}.
    """
    whole_catalog = matcher.catalog
    with atomic_write_folder(out) as folder:
        # Serving reads these for its prompts.
        metadata = {"convrec.item": item, "convrec.num_items": str(num_items)}
        pq.write_table(items.table.replace_schema_metadata(metadata), folder / "catalog.parquet")
        if ask:  # unknown attributes are refused before rows are written
            load_attributes(folder / "catalog.parquet", ask)
        files, counts = _write_tables(folder, rows, split_of, matcher, item, num_items)
        rewritten, questions = add_questions(folder, ask, matcher, num_items) if ask else ({}, {})
        summary = {
            "files": files | rewritten,
            "catalog": {
                "items": len(whole_catalog),
                "dated": items.has_years,
                "never_matched": [*items.left_out, *_unreadable_titles(whole_catalog, matcher)],
                "merged": whole_catalog.spellings(),
            },
            **about,
            "read": [*items.notes, *about["read"]],
            "rows": counts | questions,
            "damaged": damage.counts(),
        }
        write_json(folder / "summary.json", summary)
        if damage:
            damage.write_report(folder / REPORT)
        write_more(folder)
    return summary


def _write_tables(
    folder: Path, rows: Iterable[Row], split_of: Callable[[Row], str], matcher: Matcher, item: str, num_items: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """Write the tables; return the numbers of each table with rows, and counts over all rows."""
    ids = SampleIds()
    numbers = {name: TableNumbers() for name in TABLES}
    counts = _RowCounts(matcher, num_items)
    with ExitStack() as stack:
        writers = {}
        for name in TABLES:
            writers[name] = stack.enter_context(open_table_writer(folder / f"{name}.parquet", _make_schema(name)))
        for row in rows:
            split = split_of(row)
            prompt = format_prompt(row.conversation, num_items, item, matcher.catalog.dated)
            record = _make_record(row, prompt, ids)
            tables = _find_tables(row, split)
            for name in tables:
                writers[name](record)
                numbers[name].add(prompt, row.truth)
            counts.add(row, prompt, split, is_used=bool(tables))
    filled = [name for name in TABLES if numbers[name].rows]
    for name in set(TABLES) - set(filled):
        (folder / f"{name}.parquet").unlink()
    return {name: numbers[name].summary(matcher) for name in filled}, dict(counts.counts)


def _make_schema(name: str) -> pa.Schema:
    return pa.schema([*(SFT_SCHEMA if name.startswith("sft") else RL_SCHEMA), *EXTRA_FIELDS])


def _find_tables(row: Row, split: str) -> list[str]:
    """Return the tables that a row goes into: those of its split for which it has the columns."""
    tables = []
    if row.truth:
        tables.append(split)
    if row.demonstration and split != "test":
        tables.append(f"sft_{split}")
    return tables


def _make_record(row: Row, prompt: str, ids: SampleIds) -> dict[str, Any]:
    """Return a row as the tables have it; each table takes the columns of its schema."""
    demonstration = "\n".join(format_item(title, year) for title, year in row.demonstration)
    return {
        "prompt": message("user", prompt),
        "seen_titles": row.seen,
        TRUTH: row.truth,
        "sample_id": _make_sample_id(row, prompt, ids),
        "id": row.id,
        "exposure": row.exposure or None,
        "completion": message("assistant", demonstration),
    }


class _RowCounts:
    """The counts over all rows in summary.json."""

    def __init__(self, matcher: Matcher, num_items: int) -> None:
        self.matcher = matcher
        self.num_items = num_items
        self.counts: Counter[str] = Counter()
        # hash of a prompt -> its split: conversations are not divided, but two can have the same text
        self.first_split: dict[int, str] = {}

    def add(self, row: Row, prompt: str, split: str, is_used: bool) -> None:
        """Count a row.

        Args:
            row: the row.
            prompt: its text, which another split should not have.
            split: one of SPLITS.
            is_used: whether it went into a table.
        """
        matcher = self.matcher
        first_split = self.first_split.setdefault(hash64(prompt), split)
        truth = [Item(title, matcher.catalog.normalise_year(year) or NO_YEAR) for title, year in row.truth]
        demonstrated = [matcher.identify_line(title, year) for title, year in row.demonstration]
        counts = self.counts
        counts["read"] += 1
        counts["rows_whose_text_is_in_another_split"] += first_split != split
        counts["of_no_use_in_their_split"] += not is_used
        counts["repeated_ground_truths_taken_out"] += row.repeated_truths
        counts["ground_truths_already_seen"] += sum(matcher.match(truth, (), row.seen).seen)
        counts["seen_titles_outside_catalog"] += sum(not matcher.seen_rows([title]) for title in row.seen)
        counts["short_demonstrations"] += 0 < len(demonstrated) < self.num_items
        counts["demonstrated_items_outside_catalog"] += sum(match.index < 0 for match in demonstrated)


def _make_sample_id(row: Row, prompt: str, ids: SampleIds) -> str:
    """Return the row's own id if its conversation can be derived from it or has no name; otherwise make one."""
    if row.id is None:
        return ids(prompt, row.truth, row.seen, row.conversation_id)
    if row.conversation_id is None or row.id != row.conversation_id == parse_conversation_id(row.id):
        return row.id
    return f"{row.conversation_id}_t{hash64(row.id):020d}"


def _unreadable_titles(catalog: Catalog, matcher: Matcher) -> list[str]:
    """Describe titles that no response can name, because a line with them is read as another item.

    A leading number or bullet is taken for the mark of a list, surrounding quotes for decoration.
    """
    lost = []
    for row, (title, year) in enumerate(zip(catalog.titles, catalog.years, strict=True)):
        item = reparse_item(Item(title, year or NO_YEAR), matcher)
        same = matcher.identify_line(title, year or NO_YEAR)
        if item is None or matcher.identify_line(item.title, item.year) != same:
            lost.append(f"row {row}: {title!r} is read as {item.title if item else None!r}")
    return lost


def format_summary(summary: dict[str, Any], out: str | Path) -> str:
    """Format a summary for the terminal.

    Args:
        summary: the content of summary.json.
        out: the folder that was written.
    """
    lines = [describe_table(name, numbers) for name, numbers in summary["files"].items()]
    catalog = summary["catalog"]
    counts = summary["rows"]
    splits = summary["splits"]
    lines.append(f"{'catalog':<15}{catalog['items']:>8,} items {'with' if catalog['dated'] else 'without'} years")
    lines += [f"{'':<15}never matched: {problem}" for problem in catalog["never_matched"][:5]]
    lines += [f"{'':<15}{sentence}" for sentence in catalog["merged"][:5]]
    num_more = sum(max(0, len(catalog[name]) - 5) for name in ("never_matched", "merged"))
    if num_more > 0:
        lines.append(f"{'':<15}and {num_more:,} more such titles: see summary.json")
    lines += summary["read"]
    lines.append("split by " + "; ".join([splits["by"], *(f"{k} {v}" for k, v in splits.items() if k != "by" and v)]))
    lines += [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count and name != "read"]
    lines += [f"warning: {warning}" for warning in summary["warnings"]]
    if summary["damaged"]:
        lines.append(f"{sum(summary['damaged'].values()):,} damaged rows left out, named in {REPORT}:")
        lines += counted(summary["damaged"])
    missing = [name for name in ("train", "validation") if name not in summary["files"]]
    if missing:
        lines.append(
            f"no rows for {' and '.join(missing)}, but run_rank_grpo.sh needs them; see the options for splits"
        )
    return "\n".join([*lines, f"wrote {out}: {_count_in_short(summary)}"])


def _count_in_short(summary: dict[str, Any]) -> str:
    """Summarise in one line whether a conversion went well."""
    parts = [f"{summary['rows']['read']:,} rows read"]
    for name, what in (("train", "to train on"), ("sft_train", "to imitate")):
        parts.append(f"{summary['files'].get(name, {'rows': 0})['rows']:,} {what}")
    if truths := summary.get("ground_truths"):
        share = truths["outside_catalog"] / max(1, sum(truths.values()))
        parts.append(f"{share:.1%} of ground truths outside the catalog")
    parts.append(f"{sum(summary['damaged'].values()):,} damaged")
    return ", ".join(parts)


def make_split_rule(options: OutputOptions) -> SplitRule:
    """Return the rule that the options for splits give."""
    return SplitRule(
        validation_from=options.validation_from,
        test_from=options.test_from,
        validation_share=options.validation_share,
        test_share=options.test_share,
    )


@command(OwnOptions)
def main(options: OwnOptions) -> int:
    """Convert or preview a data set; return the exit status."""
    split_of_file = parse_file_splits(options.split)
    if bool(options.conversations) == bool(split_of_file):
        raise UserError("conversations.no-input", "give either --conversations, or --split with a file for each split")
    if (options.preview is None) == (options.out is None):
        raise UserError("conversations.no-output", "give either --out, or --preview to look at rows first")
    output = options.output
    conversations: Sequence[str | Path] = options.conversations or list(split_of_file)
    reading = ReadingOptions(
        form=options.form,
        truth=options.truth,
        recommenders=options.recommenders,
        columns=options.columns,
        one_conversation=options.one_conversation,
        strict=options.strict,
        split_of_file=split_of_file,
    )
    if options.preview is not None:
        text = format_preview(
            options.preview,
            conversations,
            options.catalog,
            num_items=output.num_items,
            item=output.item,
            reading=reading,
        )
        print(text)
        return 0
    assert options.out is not None
    summary = convert_own(
        conversations,
        options.catalog,
        options.out,
        item=output.item,
        num_items=output.num_items,
        rule=make_split_rule(output),
        overwrite=output.overwrite,
        skip_damaged=output.skip_damaged,
        ask=options.ask,
        progress=True,
        reading=reading,
    )
    print(format_summary(summary, options.out))
    return 0
