"""Files of conversations -> rows, whatever program wrote them, and what is told of them besides findings."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from convrec.data.damage import BadRecord, Damage, place_of
from convrec.errors import UserError
from convrec.lists.matching import Matcher
from convrec.lists.ranks import format_item
from data_prep.own_data.catalog import CatalogRead, ItemIds, read_catalog
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.exports import OWN, WANTED, guess_form, read_export
from data_prep.own_data.next_turns import Mentions, rows_of
from data_prep.own_data.rows import Row, Turn, read_row, read_turns

GIVEN, NEXT_TURNS = TRUTHS = ("given", "from-next-turns")  # --truth


class Source:
    """form: a key of exports.FORMS, None: guessed for each file. recommenders: see exports.role_of.

    left_out: kind -> count of what is no row and no finding, of the last reading. not_read: columns.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        reader: ItemReader,
        num_items: int,
        form: str | None = None,
        truth: str = GIVEN,
        recommenders: Collection[str] = (),
    ) -> None:
        self.reader, self.num_items, self.truth, self.recommenders = reader, num_items, truth, recommenders
        self.forms = {path: form or guess_form(path) for path in paths}
        self.is_guessed = form is None
        self.mentions = Mentions(reader)
        self.proposed = 0  # ground truths that the next turns name
        self.left_out: Counter[str] = Counter()
        self.not_read: set[str] = set()

    def rows(self, damage: Damage) -> Iterator[tuple[Path, int, Row]]:
        """(file, number, row) of all that can be read; the rest goes to `damage`."""
        self.proposed = 0
        self.left_out.clear()
        for path, form in self.forms.items():
            for number, record in read_export(path, form, self.recommenders, damage, self.not_read, self.left_out):
                with damage.of(path, number):
                    for row, turns in self._rows_of(record, form):
                        yield path, number, read_row(row, self.reader, self.num_items, turns)

    def _rows_of(self, record: dict[str, Any], form: str) -> Iterator[tuple[Mapping[str, Any], Sequence[Turn] | None]]:
        try:
            turns = read_turns(record.get("messages", record.get("conversation")), self.left_out)
        except BadRecord:
            if self.truth == NEXT_TURNS:
                raise
            yield record, None  # read_row says what is wrong with it, and with the rest
            return
        is_given = any(record.get(name) for name in WANTED)
        is_named = any(turn.items is not None for turn in turns)
        if not is_given and (is_named or self.truth == NEXT_TURNS):
            yield from self._by_next_turns(record, turns, is_named)
        elif not is_given and form != OWN and turns[-1].role == "assistant":
            yield record | {"demonstration": self._list_of(turns[-1].content)}, turns[:-1]
        else:
            yield record, turns

    def _by_next_turns(
        self, record: dict[str, Any], turns: Sequence[Turn], is_named: bool
    ) -> list[tuple[dict[str, Any], Sequence[Turn]]]:
        if name := record.pop("id", None):  # several rows can come of it
            record.setdefault("conversation_id", name)
        cells = [self.mentions.of_cell(turn.items, self.left_out) for turn in turns] if is_named else None
        named = cells or [self.mentions.of_text(turn.content) for turn in turns]
        rows = list(rows_of(record, turns, named, self.reader.matcher, also_user=not is_named))
        self.left_out["conversations in which no item is named in answer to the user"] += not rows
        self.proposed += sum(len(row["ground_truth"]) for row, _ in rows)
        return rows

    def _list_of(self, answer: str) -> list[Any]:
        try:
            items = self.reader.items(answer.splitlines())
        except BadRecord:
            items = []
        known = sum(self.reader.knows(format_item(*item)) for item in items)
        if 2 * known <= len(items):  # `Try Heat (1995)` is a line with a title and a year, too
            raise BadRecord(
                "the recommender's last turn, %r, is no list of items; --truth from-next-turns takes the titles that "
                "turns name as ground truth", answer
            )  # fmt: skip
        return [list(item) if self.reader.dated else [item.title] for item in items]

    def told(self) -> list[str]:
        """A line for each thing to know about how the files were read."""
        how = "guessed; --format names another" if self.is_guessed else "--format"
        lines = [f"{path}: read as {form} ({how})" for path, form in self.forms.items() if form != OWN]
        if self.proposed:
            lines.append(f"{self.proposed:,} ground truths are what the next turns name; --preview 5 shows some")
        lines += [f"{count:,} {what} left out" for what, count in self.left_out.items() if count]
        return lines + ([f"columns not read: {', '.join(sorted(self.not_read))}"] if self.not_read else [])


def open_source(
    paths: Sequence[Path],
    catalog: Path,
    num_items: int,
    damage: Damage,
    columns: Mapping[str, str] = MappingProxyType({}),
    **reading: Any,
) -> tuple[CatalogRead, Source]:
    """The catalog, whose `columns` are renamed, and the conversations that are read with it. reading: of `Source`."""
    if not 1 <= num_items <= 100:
        raise UserError(f"--num-items {num_items}: give 1 to 100")
    items = read_catalog(catalog, damage, columns)
    if not items.dated or damage.share is not None:
        damage.check([catalog], len(items.table))  # whether years are missed in the rows depends on it
    known = items.catalog()
    return items, Source(paths, ItemReader(Matcher(known), ItemIds(known)), num_items, **reading)


def preview(
    count: int, conversations: Sequence[str | Path], catalog: str | Path, num_items: int, **reading: Any
) -> str:
    """What would become of the first `count` rows, and what is wrong with the records up to there.

    Raises UserError for a file that cannot be read at all. reading: columns, and what `Source` takes.
    """
    damage = Damage()
    items, source = open_source([Path(path) for path in conversations], Path(catalog), num_items, damage, **reading)
    lines = []
    for path, number, row in islice(source.rows(damage), count):
        names = {
            "ground truth": [f"{title} ({year})" if year else title for title, year in row.truth],
            "seen": row.seen,
            "demonstration": [format_item(*item) for item in row.demonstration],
        }
        lines += [f"--- {place_of(path, number)}", row.conversation.rstrip()]
        lines += [f"{name}: {' | '.join(titles) or '-'}" for name, titles in names.items()]
    try:
        damage.check()
    except UserError as error:
        lines.append(str(error))
    return "\n".join([*items.told, *source.told(), *(lines or ["no conversations; check how the file was written"])])
