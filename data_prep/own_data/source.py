"""Read files of conversations into rows, whatever program wrote them, and report how they were understood."""

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
from data_prep.own_data.catalog import ItemIds, ParsedCatalog, read_catalog
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.conversations import TABLE_COLUMNS, UnreadColumns, guess_form, read_conversations
from data_prep.own_data.forms import OWN
from data_prep.own_data.forms.base import ReadContext, Speakers
from data_prep.own_data.forms.own import WANTED
from data_prep.own_data.forms.turn_order import FILE_ORDER
from data_prep.own_data.next_turns import Mentions, iter_rows
from data_prep.own_data.rows import KEYS, SPLITS, Row, Turn, read_row, read_turns
from data_prep.own_data.times import DateEvidence, DateOrder, read_both_orders

TRUTHS = ("given", "from-next-turns")  # --truth
GIVEN, NEXT_TURNS = TRUTHS
CONVERSATION_COLUMNS = frozenset({*KEYS, *TABLE_COLUMNS})  # in --columns; others belong to the catalog


@dataclass(frozen=True)
class ReadingOptions:
    """How files of conversations are read.

    Attributes:
        form: a key of FORMS; None: guessed for each file.
        truth: GIVEN, or NEXT_TURNS to take the items that the next turns name as ground truth.
        recommenders: names of the speakers who recommend.
        columns: our name of a column -> the files' name.
        one_conversation: whether a table of turns without a conversation column is one conversation.
        strict: whether a column that nothing reads is an error.
        split_of_file: the split of each file's rows; empty if the rows or a rule decide.
    """

    form: str | None = None
    truth: str = GIVEN
    recommenders: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    one_conversation: bool = False
    strict: bool = False
    split_of_file: Mapping[Path, str] = field(default_factory=dict)


class _LabelledRecord(NamedTuple):
    """A record with its ground truth or demonstration, and where that comes from."""

    record: Mapping[str, Any]
    turns: Sequence[Turn] | None
    why: str


class Source:
    """Conversations in files, read with the help of a catalog.

    Attributes:
        num_inferred: ground truths inferred from the next turns in the last reading.
        left_out: kind -> count of what became neither a row nor a problem.
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
        self.num_inferred = 0
        self.reading = self._begin_reading()
        self.unread = UnreadColumns()
        self._date_orders: dict[Path, DateOrder | None] = {}

    @property
    def left_out(self) -> Counter[str]:
        return self.reading.left_out

    def iter_rows(self, damage: Damage) -> Iterator[tuple[Path, int, Row]]:
        """Read all conversations.

        Yields:
            The file, the row of the conversation's first record, and a row of training data.

        Raises:
            UserError: A file cannot be read at all, or no speaker has a name of --recommender.
        """
        self.num_inferred = 0
        self.reading = self._begin_reading()
        for path, number, record in read_conversations(self.forms, self.columns, self.reading, damage, self.unread):
            with damage.of(path, number):
                self._add_split(path, record)
                date_order = self._find_date_order(path, record.get("time"))
                for labelled in self._label_record(record):
                    row = read_row(labelled.record, self.reader, self.num_items, labelled.turns, date_order)
                    yield path, number, replace(row, why=labelled.why)
        if self.options.strict:
            self.unread.refuse(damage)
        is_whole_file_spoiled = any(finding.lost == 0 for finding in damage.findings)
        if not is_whole_file_spoiled and (problem := self.reading.speakers.describe_missing()):
            raise UserError("conversations.unknown-recommender", problem)

    def _begin_reading(self) -> ReadContext:
        return ReadContext(
            speakers=Speakers(self.options.recommenders),
            one_conversation=self.options.one_conversation,
            keeps_order=self.options.columns.get("order") == FILE_ORDER,
        )

    def _add_split(self, path: Path, record: dict[str, Any]) -> None:
        """Set a record's split to that of its file. Raises BadRecord if the record has its own."""
        if path not in self.options.split_of_file:
            return
        if "split" in record:
            raise BadRecord("conversations.own-split", "has its own split; remove it, or drop --split")
        record["split"] = self.options.split_of_file[path]

    def _find_date_order(self, path: Path, value: Any) -> DateOrder | None:
        """Return the order of the file's dates, which are all examined once one is ambiguous. Raises BadRecord."""
        if path not in self._date_orders and isinstance(value, str):
            try:
                is_ambiguous = read_both_orders(value).is_ambiguous
            except BadRecord:
                return None  # reading the row reports what is wrong
            if not is_ambiguous:
                return None
            evidence = DateEvidence()
            for _, number, record in read_conversations(
                {path: self.forms[path]}, {}, self._begin_reading(), Damage(), UnreadColumns()
            ):
                evidence.add(number, record.get("time"))
            self._date_orders[path] = evidence.find_order()
        return self._date_orders.get(path)

    def _label_record(self, record: dict[str, Any]) -> Iterator[_LabelledRecord]:
        """Yield the rows that a conversation becomes."""
        try:
            turns = read_turns(record.get("messages", record.get("conversation")), self.left_out)
        except BadRecord:
            if self.options.truth == NEXT_TURNS:
                raise
            yield _LabelledRecord(record, None, "")  # read_row reports this problem along with any others
            return
        is_given = any(record.get(name) for name in WANTED)
        is_named = any(turn.items is not None for turn in turns)
        if not is_given and (is_named or self.options.truth == NEXT_TURNS):
            yield from self._infer_from_next_turns(record, turns, is_named)
        elif not is_given and turns[-1].role == "assistant":
            demonstration = self._parse_list(turns[-1].content)
            last_asked = max((place for place, turn in enumerate(turns) if turn.role == "user"), default=-1)
            self.left_out["turns of the recommender before its list"] += len(turns) - last_asked - 2
            why = "the recommender's last turn is this list"
            yield _LabelledRecord(record | {"demonstration": demonstration}, turns[: last_asked + 1] or turns, why)
        else:
            yield _LabelledRecord(record, turns, "given in the record")

    def _infer_from_next_turns(
        self, record: dict[str, Any], turns: Sequence[Turn], is_named: bool
    ) -> Iterator[_LabelledRecord]:
        if name := record.pop("id", None):  # the record may become several rows
            record.setdefault("conversation_id", name)
        named = [self._find_named(turn) for turn in turns]
        rows = list(iter_rows(record, turns, named, self.reader.matcher, also_user=not is_named))
        if not rows:
            self.left_out["conversations in which no answer to the user names an item"] += 1
        self.num_inferred += sum(len(row["ground_truth"]) for row, _ in rows)
        for row, before in rows:
            answer = next(turn.content for turn in turns[len(before) :])
            speaker = "the answer" if is_named else "the answer, or the user after it,"
            yield _LabelledRecord(row, before, f"{speaker} names new items: {answer}")

    def _find_named(self, turn: Turn) -> list[Item]:
        """Return the items that a turn names: those its source lists, else those found in its text."""
        if turn.items is None:
            return self.mentions.find_in_text(turn.content)
        return self.mentions.parse_cell(turn.items, self.left_out)

    def _parse_list(self, answer: str) -> list[Any]:
        try:
            items = self.reader.read_items(answer.splitlines())
        except BadRecord:
            items = []
        num_known = sum(self.reader.knows(format_item(*item)) for item in items)
        if 2 * num_known <= len(items):  # `Try Heat (1995)` is also a line with a title and a year
            raise BadRecord(
                "conversations.last-turn-not-a-list",
                "the recommender's last turn, %r, is not a list of items; --truth from-next-turns uses the titles that "
                "turns name as ground truth",
                answer,
            )
        return [list(item) if self.reader.has_years else [item.title] for item in items]

    def describe_emptiness(self) -> str:
        """Say why the files gave no row."""
        if any(self.left_out.values()):
            return "all conversations were left out"
        return "no conversations. Check how the file was written."

    def describe_reading(self) -> list[str]:
        """Return a line for each fact to know about how the files were read."""
        how = "--format" if self.options.form else "guessed; --format names another"
        lines = [f"{path}: read as {form} ({how})" for path, form in self.forms.items() if form != OWN]
        lines += self.reading.notes
        lines += filter(None, map(describe_encoding, self.forms))
        if self.num_inferred:
            lines.append(f"{self.num_inferred:,} ground truths were inferred from the next turns; --preview shows some")
        lines += [f"{count:,} {what} left out" for what, count in self.left_out.items() if count]
        return [*lines, *filter(None, [self.unread.describe()])]


def open_source(
    paths: Sequence[Path],
    catalog: Path,
    num_items: int,
    damage: Damage,
    reading: ReadingOptions = ReadingOptions(),
) -> tuple[ParsedCatalog, Source]:
    """Read the catalog, then open the conversations that are read with it.

    Args:
        paths: files of conversations.
        catalog: the catalog's file.
        num_items: items that a prompt asks for.
        damage: collects the catalog's damaged items.
        reading: how the conversations are read. Its columns that are not in CONVERSATION_COLUMNS belong to the catalog.

    Raises:
        UserError: The catalog or a file cannot be read, or its form is unknown.
    """
    if not 1 <= num_items <= 100:
        raise UserError("conversations.num-items-out-of-range", f"--num-items {num_items}: out of range; give 1 to 100")
    conversation_columns = {ours: theirs for ours, theirs in reading.columns.items() if ours in CONVERSATION_COLUMNS}
    catalog_columns = {ours: theirs for ours, theirs in reading.columns.items() if ours not in CONVERSATION_COLUMNS}
    items = read_catalog(catalog, damage, catalog_columns)
    if not items.has_years or damage.share is not None:
        damage.check([catalog], len(items.table))  # rows need years or not depending on the catalog
    whole_catalog = items.build_catalog()
    reader = ItemReader(Matcher(whole_catalog), ItemIds(whole_catalog))
    return items, Source(paths, reader, num_items, replace(reading, columns=conversation_columns))


def parse_file_splits(texts: Sequence[str]) -> dict[Path, str]:
    """Parse --split.

    Args:
        texts: files of train, validation and test in this order, or SPLIT=FILE.

    Returns:
        The split of each file.

    Raises:
        UserError: There are more files than splits, an unknown split, or a file twice.
    """
    split_of_file: dict[Path, str] = {}
    for place, text in enumerate(texts):
        name, equals, file = text.partition("=")
        if not equals:
            name = SPLITS[place] if place < len(SPLITS) else ""
            file = text
        if name not in SPLITS:
            problem = "give at most three files for train, validation and test, or SPLIT=FILE"
            raise UserError("conversations.unknown-split", f"--split {text}: {problem}")
        if Path(file) in split_of_file:
            raise UserError(
                "conversations.repeated-split-file", f"--split {text}: this file occurs twice; give each file once"
            )
        split_of_file[Path(file)] = name
    return split_of_file
