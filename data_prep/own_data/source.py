"""Files of conversations -> rows, whatever program wrote them, and what is told of them besides findings."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage
from convrec.data.text_files import describe_encoding
from convrec.titles.item import Item, format_item
from convrec.titles.matching import Matcher
from data_prep.own_data.catalog import CatalogRead, ItemIds, read_catalog
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.conversations import TABLE_COLUMNS, Unread, guess_form, read_conversations
from data_prep.own_data.forms import OWN
from data_prep.own_data.forms.base import Reading, Speakers
from data_prep.own_data.forms.own import WANTED
from data_prep.own_data.forms.turn_order import FILE_ORDER
from data_prep.own_data.next_turns import Mentions, iter_rows
from data_prep.own_data.rows import KEYS, SPLITS, Row, Turn, read_row, read_turns
from data_prep.own_data.times import DateEvidence, DateOrder, read_both_orders

GIVEN, NEXT_TURNS = TRUTHS = ("given", "from-next-turns")  # --truth
CONVERSATION_COLUMNS = frozenset({*KEYS, *TABLE_COLUMNS})  # of --columns; others are the catalog's


@dataclass(frozen=True)
class ReadingOptions:
    """How files of conversations are read.

    form: a key of FORMS, None: guessed for each file.
    truth: GIVEN, or NEXT_TURNS where the turns that follow say what was wanted.
    recommenders: names of those who recommend.
    columns: our name of a column -> the files'.
    one_conversation: whether a table of turns without a column of conversations is one.
    strict: whether a column that nothing reads is an error.
    split_of_file: the split of each file's rows; empty where rows say it, or a rule does.
    """

    form: str | None = None
    truth: str = GIVEN
    recommenders: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    one_conversation: bool = False
    strict: bool = False
    split_of_file: Mapping[Path, str] = field(default_factory=dict)


class _Wanted(NamedTuple):
    """A record with what is wanted, and why it is."""

    record: Mapping[str, Any]
    turns: Sequence[Turn] | None
    why: str


class Source:
    """Conversations in files, read with a catalog at hand.

    proposed: ground truths that the next turns name, of the last reading.
    left_out: kind -> count of what is no row and no finding.
    """

    def __init__(
        self, paths: Sequence[Path], reader: ItemReader, num_items: int, options: ReadingOptions = ReadingOptions()
    ) -> None:
        self.reader = reader
        self.num_items = num_items
        self.options = options
        self.columns = {ours: theirs for ours, theirs in options.columns.items() if theirs != FILE_ORDER}
        self.forms = {path: options.form or guess_form(path, self.columns) for path in paths}
        self.mentions = Mentions(reader)
        self.proposed = 0
        self.reading = self._begin_reading()
        self.unread = Unread()
        self._date_orders: dict[Path, DateOrder | None] = {}

    @property
    def left_out(self) -> Counter[str]:
        return self.reading.left_out

    def rows(self, damage: Damage) -> Iterator[tuple[Path, int, Row]]:
        """Read all conversations.

        Yields:
            The file, the row of the conversation's first record, and a row of training data.

        Raises:
            UserError: Something is wrong with a file as a whole, or nobody has a name of --recommender.
        """
        self.proposed = 0
        self.reading = self._begin_reading()
        for path, number, record in read_conversations(self.forms, self.columns, self.reading, damage, self.unread):
            with damage.of(path, number):
                self._add_split(path, record)
                date_order = self._find_date_order(path, record.get("time"))
                for wanted in self._find_wanted(record):
                    row = read_row(wanted.record, self.reader, self.num_items, wanted.turns, date_order)
                    yield path, number, replace(row, why=wanted.why)
        if self.options.strict:
            self.unread.refuse(damage)
        is_whole_file_spoiled = any(finding.lost == 0 for finding in damage.findings)
        if not is_whole_file_spoiled and (problem := self.reading.speakers.describe_missing()):
            raise UserError(problem)

    def _begin_reading(self) -> Reading:
        return Reading(
            speakers=Speakers(self.options.recommenders),
            one_conversation=self.options.one_conversation,
            keeps_order=self.options.columns.get("order") == FILE_ORDER,
        )

    def _add_split(self, path: Path, record: dict[str, Any]) -> None:
        """Write the split of the record's file into it. Raises BadRecord for a record that has one of its own."""
        if path not in self.options.split_of_file:
            return
        if "split" in record:
            raise BadRecord("a split of its own; leave it out, or --split")
        record["split"] = self.options.split_of_file[path]

    def _find_date_order(self, path: Path, value: Any) -> DateOrder | None:
        """The order of the file's dates, which are looked at where one has two readings. Raises BadRecord."""
        if path not in self._date_orders and isinstance(value, str):
            try:
                is_open = read_both_orders(value).is_open
            except BadRecord:
                return None  # the row's reading says what is wrong
            if not is_open:
                return None
            evidence = DateEvidence()
            for _, number, record in read_conversations(
                {path: self.forms[path]}, {}, self._begin_reading(), Damage(), Unread()
            ):
                evidence.add(number, record.get("time"))
            self._date_orders[path] = evidence.order()
        return self._date_orders.get(path)

    def _find_wanted(self, record: dict[str, Any]) -> Iterator[_Wanted]:
        """The rows that a conversation becomes."""
        try:
            turns = read_turns(record.get("messages", record.get("conversation")), self.left_out)
        except BadRecord:
            if self.options.truth == NEXT_TURNS:
                raise
            yield _Wanted(record, None, "")  # read_row says what is wrong with it, and with the rest
            return
        is_given = any(record.get(name) for name in WANTED)
        is_named = any(turn.items is not None for turn in turns)
        if not is_given and (is_named or self.options.truth == NEXT_TURNS):
            yield from self._find_in_next_turns(record, turns, is_named)
        elif not is_given and turns[-1].role == "assistant":
            demonstration = self._parse_list(turns[-1].content)
            last_asked = max((place for place, turn in enumerate(turns) if turn.role == "user"), default=-1)
            self.left_out["what a recommender says before its list"] += len(turns) - last_asked - 2
            why = "the recommender's last turn is this list"
            yield _Wanted(record | {"demonstration": demonstration}, turns[: last_asked + 1] or turns, why)
        else:
            yield _Wanted(record, turns, "the record says so")

    def _find_in_next_turns(self, record: dict[str, Any], turns: Sequence[Turn], is_named: bool) -> Iterator[_Wanted]:
        if name := record.pop("id", None):  # several rows can come of it
            record.setdefault("conversation_id", name)
        named = [self._find_named(turn) for turn in turns]
        rows = list(iter_rows(record, turns, named, self.reader.matcher, also_user=not is_named))
        if not rows:
            self.left_out["conversations in which no item is named in answer to the user"] += 1
        self.proposed += sum(len(row["ground_truth"]) for row, _ in rows)
        for row, before in rows:
            answer = next(turn.content for turn in turns[len(before) :])
            said_by = "the answer names" if is_named else "the answer, or the user after it, names"
            yield _Wanted(row, before, f"{said_by} what nobody had named: {answer}")

    def _find_named(self, turn: Turn) -> list[Item]:
        """The items that a turn names: those that its source says, else those that its text says."""
        if turn.items is None:
            return self.mentions.find_in_text(turn.content)
        return self.mentions.parse_cell(turn.items, self.left_out)

    def _parse_list(self, answer: str) -> list[Any]:
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

    def describe_emptiness(self) -> str:
        """Why no row came of the files."""
        if any(self.left_out.values()):
            return "no conversation is left of what the files have"
        return "no conversations; check how the file was written"

    def told(self) -> list[str]:
        """A line for each thing to know about how the files were read."""
        how = "--format" if self.options.form else "guessed; --format names another"
        lines = [f"{path}: read as {form} ({how})" for path, form in self.forms.items() if form != OWN]
        lines += self.reading.notes
        lines += filter(None, map(describe_encoding, self.forms))
        if self.proposed:
            lines.append(f"{self.proposed:,} ground truths are what the next turns name; --preview shows some")
        lines += [f"{count:,} {what} left out" for what, count in self.left_out.items() if count]
        return [*lines, *filter(None, [self.unread.describe()])]


def open_source(
    paths: Sequence[Path],
    catalog: Path,
    num_items: int,
    damage: Damage,
    reading: ReadingOptions = ReadingOptions(),
) -> tuple[CatalogRead, Source]:
    """Read the catalog, and open the conversations that are read with it.

    Args:
        paths: files of conversations.
        catalog: the catalog's file.
        num_items: the items that a prompt asks for.
        damage: gets the catalog's damaged items.
        reading: how the conversations are read. Of its columns, those that are none of CONVERSATION_COLUMNS are the
            catalog's.

    Raises:
        UserError: The catalog or a file cannot be read, or is of no known form.
    """
    if not 1 <= num_items <= 100:
        raise UserError(f"--num-items {num_items}: give 1 to 100")
    of_conversations = {ours: theirs for ours, theirs in reading.columns.items() if ours in CONVERSATION_COLUMNS}
    of_catalog = {ours: theirs for ours, theirs in reading.columns.items() if ours not in CONVERSATION_COLUMNS}
    items = read_catalog(catalog, damage, of_catalog)
    if not items.dated or damage.share is not None:
        damage.check([catalog], len(items.table))  # whether years are missed in the rows depends on it
    known = items.catalog()
    reader = ItemReader(Matcher(known), ItemIds(known))
    return items, Source(paths, reader, num_items, replace(reading, columns=of_conversations))


def parse_file_splits(texts: Sequence[str]) -> dict[Path, str]:
    """Read --split.

    Args:
        texts: files of train, validation and test in this order, or SPLIT=FILE.

    Returns:
        The split of each file.

    Raises:
        UserError: More files than splits, a split that there is not, or a file twice.
    """
    split_of_file: dict[Path, str] = {}
    for place, text in enumerate(texts):
        name, equals, file = text.partition("=")
        if not equals:
            name = SPLITS[place] if place < len(SPLITS) else ""
            file = text
        if name not in SPLITS:
            raise UserError(f"--split {text}: give at most three files, train, validation and test, or SPLIT=FILE")
        if Path(file) in split_of_file:
            raise UserError(f"--split {text}: the file is there twice; a file is of one split")
        split_of_file[Path(file)] = name
    return split_of_file
