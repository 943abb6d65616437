"""Files of conversations in any of FORMS -> records under our keys, one per conversation."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage
from convrec.data.records import LIST, read_records
from data_prep.own_data.forms import FORMS, OWN
from data_prep.own_data.forms.base import Candidate, Form, Placed, Reading, Record, iter_each, plain_name
from data_prep.own_data.rows import ALSO_CALLED, KEYS, is_missing

LOOKED_AT = 50  # records by which a form is guessed
NOTHING_RECOMMENDED = "answers that recommend nothing"
LONGEST_EXAMPLE = 200  # characters of a record in a message
# What reading a record of another form raises.
_WRONG_FORM = (LookupError, TypeError, AttributeError, ValueError)
_PLAIN_KEYS = {plain_name(key): key for key in KEYS}
_COMMON_NAMES = {"id", "text", "type", "name"}  # which say nothing about a form
# Columns of tables that --columns can name beside our keys.
TABLE_COLUMNS = ("order", "speaker", "text")


@dataclass
class Unread:
    """Columns that nothing reads: (file, column) -> the first row that has it."""

    first_rows: dict[tuple[Path, str], int] = field(default_factory=dict)

    def add(self, path: Path, row: int, names: Iterable[str]) -> None:
        for name in names:
            self.first_rows.setdefault((path, name), row)

    def describe(self) -> str | None:
        names = sorted({name for _, name in self.first_rows})
        return f"columns not read: {', '.join(map(_with_hint, names))}" if names else None

    def refuse(self, damage: Damage) -> None:
        """Add each column to `damage`, once per file, as what --strict does not allow."""
        for (path, name), row in self.first_rows.items():
            text = f"unknown key %r{_hint(name)}; take it out, or leave --strict out; keys are {', '.join(KEYS)}"
            damage.add(path, row, BadRecord(text, name), lost=0)


def guess_form(path: Path, columns: Mapping[str, str]) -> str:
    """The name of the form of a file, by its first records.

    Args:
        path: the file.
        columns: our name of a column -> the file's.

    Raises:
        UserError: The file cannot be read, or its records are of no form.
    """
    numbered = read_records(path, Damage(), lists=True)
    records = [_renamed(record, columns) for _, record in islice(numbered, LOOKED_AT)]
    if not records:
        return OWN  # the reading says what is wrong
    name = next((name for name, form in FORMS.items() if any(map(form.fits, records))), None)
    if name is None:
        raise UserError(_describe_unknown(path, records[0]))
    return name


def read_conversations(
    files: Mapping[Path, str],
    columns: Mapping[str, str],
    reading: Reading,
    damage: Damage,
    unread: Unread,
) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Read the conversations of files.

    Args:
        files: each file -> the name of its form.
        columns: our name of a column -> the file's.
        reading: what the forms are told, and what they tell.
        damage: gets what cannot be read.
        unread: gets the columns that are not looked at.

    Yields:
        The file and row of a conversation's first record, and a record under KEYS.
    """
    missing = dict.fromkeys(columns.values())
    spanning: set[str] = set()
    for path, name in files.items():
        form = FORMS[name]
        if name in spanning:
            continue
        paths = [other for other in files if files[other] == name] if form.spans_files else [path]
        if form.spans_files:
            spanning.add(name)
        yield from _read_form(paths, name, columns, missing, reading, damage, unread)
    if missing:
        where = ", ".join(map(str, files))
        raise UserError(f"{where}: no column {next(iter(missing))}, which --columns names; name one that is there")


def _read_form(
    paths: Sequence[Path],
    name: str,
    columns: Mapping[str, str],
    missing: dict[str, None],
    reading: Reading,
    damage: Damage,
    unread: Unread,
) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """The conversations of files of one form. `missing` loses the columns that a record has."""
    form = FORMS[name]
    beside_damage: set[tuple[Path, int]] = set()
    records = _iter_records(paths, columns, missing, damage, beside_damage)
    for candidate in _iter_candidates(form, name, records, reading, damage):
        path, row, _ = candidate.records[0]
        if form.find_dialogs and any((placed.path, placed.row) in beside_damage for placed in candidate.records):
            damage.add(path, row, "a row beside it cannot be read, which may be one of its turns; mend that row")
            continue
        with damage.of(path, row):
            record = _read_candidate(candidate, form, name, reading, unread)
            if record is not None:
                yield path, row, record


def _iter_records(
    paths: Sequence[Path],
    columns: Mapping[str, str],
    missing: dict[str, None],
    damage: Damage,
    beside_damage: set[tuple[Path, int]],
) -> Iterator[Placed]:
    """The records of files. beside_damage: gets those before and after a row that cannot be read."""
    for path in paths:
        last: tuple[Path, int] | None = None
        num_findings = len(damage.findings)
        for row, record in read_records(path, damage, lists=True):
            if len(damage.findings) > num_findings:
                num_findings = len(damage.findings)
                beside_damage.update(place for place in (last, (path, row)) if place)
            for name in [name for name in missing if name in record]:
                del missing[name]
            last = (path, row)
            yield Placed(path, row, _renamed(record, columns))
        for finding in damage.findings[num_findings:]:  # a quote that has taken in rows is found in the end
            if last:
                beside_damage.add(min(last, (path, finding.row)))


def _iter_candidates(
    form: Form, name: str, records: Iterator[Placed], reading: Reading, damage: Damage
) -> Iterator[Candidate]:
    if not form.find_dialogs:
        for placed in records:
            yield from iter_each(form.read_record or _read_nothing, [placed], reading)
        return
    held = list(records)
    if not held:
        return
    try:
        yield from form.find_dialogs(held, reading)
    except BadRecord as problem:
        damage.add(held[0].path, held[0].row, problem, lost=0)
    except UserError:
        raise
    except _WRONG_FORM as error:
        damage.add(held[0].path, held[0].row, _describe_wrong_form(name, error), lost=0)


def _read_nothing(record: Record, speakers: Any) -> None:
    """Ours is read as it is."""


def _read_candidate(
    candidate: Candidate, form: Form, name: str, reading: Reading, unread: Unread
) -> dict[str, Any] | None:
    """A conversation under our keys; None for what is none. Raises BadRecord."""
    given = _read_given(candidate.records, form)
    for path, row, record in candidate.records:
        unread.add(path, row, (key for key in record if not _is_read(key, form, name)))
    if name == OWN:
        return given
    try:
        dialog = candidate.read()
    except (BadRecord, UserError):
        raise
    except _WRONG_FORM as error:
        raise _describe_wrong_form(name, error) from None
    if dialog is None:
        if form.read_record:
            reading.left_out[NOTHING_RECOMMENDED] += 1
        return None
    said = {"conversation": dialog.turns, "conversation_id": dialog.conversation_id, "time": dialog.time}
    return {**given, **dialog.given, **{key: value for key, value in said.items() if value is not None}}


def _read_given(records: Sequence[Placed], form: Form) -> dict[str, Any]:
    """What records say under our keys. Raises BadRecord where those of one conversation differ."""
    given: dict[str, Any] = {}
    for _, row, record in records:
        for key, value in record.items():
            ours = _own_key(key, form)
            if not ours or is_missing(value):
                continue
            earlier = given.setdefault(ours, value)
            if earlier != value and ours not in ("time", "id"):
                raise BadRecord("rows of one conversation have different values of %s (row %s); write one", ours, row)
    return given


def _own_key(key: str, form: Form) -> str | None:
    """Our key that a column of a record means; None for the form's and for others."""
    if key in form.reads:
        return None
    if key in (*KEYS, "messages"):
        return key
    ours = _PLAIN_KEYS.get(plain_name(key))
    return ours if ours and plain_name(key) not in form.reads else None


def _is_read(key: str, form: Form, name: str) -> bool:
    return key in form.reads or plain_name(key) in form.reads or bool(_own_key(key, form)) or key == "extra"


def _renamed(record: Record, columns: Mapping[str, str]) -> Record:
    """The record with our names of columns; one that has our name already makes room."""
    ours_of = {theirs: ours for ours, theirs in columns.items() if theirs in record}
    if not ours_of:
        return record
    taken = set(ours_of.values())
    kept = {key: value for key, value in record.items() if key not in taken or key in ours_of}
    return {ours_of.get(key, key): value for key, value in kept.items()}


def _describe_wrong_form(name: str, error: Exception) -> BadRecord:
    text = f"is not what {name} writes (%s: %s); name its form: --format"
    return BadRecord(text, type(error).__name__, error)


def _describe_unknown(path: Path, record: Record) -> str:
    """That a file is of no form, and what to do about it."""
    if LIST in record:
        return f"{path}: an entry is a list of records; write one record per line, or name a file of one list .json"
    plain_keys = {plain_name(key) for key in record}

    def count_shared(name: str) -> int:
        reads = KEYS if name == OWN else FORMS[name].reads
        return len({plain_name(key) for key in reads} & plain_keys - _COMMON_NAMES)

    closest = max(FORMS, key=count_shared)
    if not count_shared(closest):
        closest = OWN
    keys = ", ".join(islice(map(str, record), 12))
    example = FORMS[closest].example.replace("\n", "\\n")
    shown = json.dumps(record, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= LONGEST_EXAMPLE else f"{shown[:LONGEST_EXAMPLE]}..."
    return (
        f"{path}: of no known form; its keys are {keys}, its first record is {shown}; the closest is --format "
        f"{closest}, as in {example}; rename keys with --columns OURS=THEIRS, or see docs/how-to/exports.md"
    )


def _with_hint(name: str) -> str:
    return f"{name}{_hint(name)}"


def _hint(name: str) -> str:
    """Which of our keys a column may mean."""
    ours = ALSO_CALLED.get(plain_name(name))
    near = [ours] if ours else get_close_matches(str(name), [key for key in KEYS if len(key) > 4], 1, 0.85)
    return f" (if it is {near[0]}: --columns {near[0]}={name})" if near else ""


def count_by_kind(counts: Counter[str]) -> list[str]:
    return [f"{count:,} {what} left out" for what, count in counts.items() if count]
