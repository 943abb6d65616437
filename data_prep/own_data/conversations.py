"""Read files of conversations in any of FORMS into records with our keys, one per conversation."""

import json
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
from data_prep.own_data.forms.base import (
    Candidate,
    Form,
    LocatedRecord,
    ReadContext,
    Record,
    iter_single_records,
    normalise_name,
)
from data_prep.own_data.rows import ALSO_CALLED, KEYS, is_missing

NUM_PROBED = 50  # records from which the form is guessed
NO_RECOMMENDATION = "answers that recommend nothing"
LONGEST_EXAMPLE = 200  # characters of a record in a message
# Raised when a record of another form is read.
_WRONG_FORM = (LookupError, TypeError, AttributeError, ValueError)
_PLAIN_KEYS = {normalise_name(key): key for key in KEYS}
_COMMON_NAMES = {"id", "text", "type", "name"}  # they occur in many forms
# Columns of tables that --columns can name in addition to our keys.
TABLE_COLUMNS = ("order", "speaker", "text")


@dataclass
class UnreadColumns:
    """Collect the columns that nothing reads: (file, column) -> the first row that has it."""

    first_rows: dict[tuple[Path, str], int] = field(default_factory=dict)

    def add(self, path: Path, row: int, names: Iterable[str]) -> None:
        """Note columns of a row that nothing reads.

        Args:
            path: the row's file.
            row: its number there.
            names: of the columns.
        """
        for name in names:
            self.first_rows.setdefault((path, name), row)

    def describe(self) -> str | None:
        """Describe all unread columns in one line; None if there are none."""
        names = sorted({name for _, name in self.first_rows})
        return f"columns not read: {', '.join(map(_add_hint, names))}" if names else None

    def refuse(self, damage: Damage) -> None:
        """Add each column to `damage`, once per file; for --strict."""
        for (path, name), row in self.first_rows.items():
            problem = BadRecord(
                "conversations.unknown-key",
                f"unknown key %r{_suggest_key(name)}; remove it, or drop --strict; keys are {', '.join(KEYS)}",
                name,
            )
            damage.add(path, row, problem, lost=0)


def guess_form(path: Path, columns: Mapping[str, str]) -> str:
    """Guess a file's form from its first records.

    Args:
        path: the file.
        columns: our name of a column -> the file's.

    Returns:
        A key of FORMS.

    Raises:
        UserError: The file cannot be read, or its records fit no form.
    """
    numbered = read_records(path, Damage(), lists=True)
    records = [_rename_columns(record, columns) for _, record in islice(numbered, NUM_PROBED)]
    if not records:
        return OWN  # reading the file reports what is wrong
    name = next((name for name, form in FORMS.items() if any(map(form.fits, records))), None)
    if name is None:
        raise UserError("conversations.unknown-format", _describe_unknown(path, records[0]))
    return name


def read_conversations(
    files: Mapping[Path, str],
    columns: Mapping[str, str],
    reading: ReadContext,
    damage: Damage,
    unread: UnreadColumns,
) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Read the conversations of files.

    Args:
        files: each file -> the name of its form.
        columns: our name of a column -> the file's.
        reading: settings for the forms, and what they report.
        damage: collects what cannot be read.
        unread: collects the columns that nothing reads.

    Yields:
        The file and row of a conversation's first record, and a record with the keys of KEYS.

    Raises:
        UserError: A column of `columns` is in no file, or a file cannot be read at all.
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
        name = next(iter(missing))
        ours = next(ours for ours, theirs in columns.items() if theirs == name)
        raise UserError(
            "conversations.unknown-column", f"--columns {ours}={name}: no such column in {where}; correct the name"
        )


def _read_form(
    paths: Sequence[Path],
    name: str,
    columns: Mapping[str, str],
    missing: dict[str, None],
    reading: ReadContext,
    damage: Damage,
    unread: UnreadColumns,
) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Yield the conversations of files of one form. Columns that a record has are deleted from `missing`."""
    form = FORMS[name]
    near_damage: set[tuple[Path, int]] = set()
    records = _iter_records(paths, columns, missing, damage, near_damage)
    for candidate in _iter_candidates(form, name, records, reading, damage):
        path, row, _ = candidate.records[0]
        if form.find_dialogs and any((located.path, located.row) in near_damage for located in candidate.records):
            problem = BadRecord(
                "conversations.damaged-neighbour",
                "an adjacent row cannot be read and may be one of its turns; fix that row",
            )
            damage.add(path, row, problem)
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
    near_damage: set[tuple[Path, int]],
) -> Iterator[LocatedRecord]:
    """Yield the records of files. near_damage: collects the rows before and after one that cannot be read."""
    for path in paths:
        last: tuple[Path, int] | None = None
        num_findings = len(damage.findings)
        for row, record in read_records(path, damage, lists=True):
            if len(damage.findings) > num_findings:
                num_findings = len(damage.findings)
                near_damage.update(place for place in (last, (path, row)) if place)
            for name in [name for name in missing if name in record]:
                del missing[name]
            last = (path, row)
            yield LocatedRecord(path, row, _rename_columns(record, columns))
        for finding in damage.findings[num_findings:]:  # an unclosed quote is only noticed at the end
            if last:
                near_damage.add(min(last, (path, finding.row)))


def _iter_candidates(
    form: Form, name: str, records: Iterator[LocatedRecord], reading: ReadContext, damage: Damage
) -> Iterator[Candidate]:
    if not form.find_dialogs:
        for located in records:
            yield from iter_single_records(form.read_record or _read_nothing, [located], reading)
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
    """Stand in for the form OWN, whose records need no translation."""


def _read_candidate(
    candidate: Candidate, form: Form, name: str, reading: ReadContext, unread: UnreadColumns
) -> dict[str, Any] | None:
    """Return a conversation with our keys; None if there is none. Raises BadRecord."""
    own_values = _read_own_values(candidate.records, form)
    for path, row, record in candidate.records:
        unread.add(path, row, (key for key in record if not _is_read(key, form, name)))
    if name == OWN:
        return own_values
    try:
        dialog = candidate.read()
    except (BadRecord, UserError):
        raise
    except _WRONG_FORM as error:
        raise _describe_wrong_form(name, error) from None
    if dialog is None:
        if form.read_record:
            reading.left_out[NO_RECOMMENDATION] += 1
        return None
    values = {"conversation": dialog.turns, "conversation_id": dialog.conversation_id, "time": dialog.time}
    return {**own_values, **dialog.own_values, **{key: value for key, value in values.items() if value is not None}}


def _read_own_values(records: Sequence[LocatedRecord], form: Form) -> dict[str, Any]:
    """Return what records have under our keys. Raises BadRecord if rows of one conversation differ."""
    values: dict[str, Any] = {}
    for _, row, record in records:
        for key, value in record.items():
            ours = _own_key(key, form)
            if not ours or is_missing(value):
                continue
            earlier = values.setdefault(ours, value)
            if earlier != value and ours not in ("time", "id"):
                raise BadRecord(
                    "conversations.different-values",
                    "rows of one conversation have different values for %s (row %s); use one value",
                    ours,
                    row,
                )
    return values


def _own_key(key: str, form: Form) -> str | None:
    """Return our key for a record's column; None if it belongs to the form or is unknown."""
    if key in form.reads:
        return None
    if key in (*KEYS, "messages"):
        return key
    ours = _PLAIN_KEYS.get(normalise_name(key))
    return ours if ours and normalise_name(key) not in form.reads else None


def _is_read(key: str, form: Form, name: str) -> bool:
    return key in form.reads or normalise_name(key) in form.reads or bool(_own_key(key, form)) or key == "extra"


def _rename_columns(record: Record, columns: Mapping[str, str]) -> Record:
    """Rename columns to our names; a column that already has such a name is dropped."""
    own_names = {theirs: ours for ours, theirs in columns.items() if theirs in record}
    if not own_names:
        return record
    taken = set(own_names.values())
    remaining = {key: value for key, value in record.items() if key not in taken or key in own_names}
    return {own_names.get(key, key): value for key, value in remaining.items()}


def _describe_wrong_form(name: str, error: Exception) -> BadRecord:
    return BadRecord(
        "conversations.wrong-format",
        f"is not in the format {name} (%s: %s); name the format: --format",
        type(error).__name__,
        error,
    )


def _describe_unknown(path: Path, record: Record) -> str:
    """Say that a file's format is unknown, and what to do about it."""
    if LIST in record:
        return f"{path}: an entry is a list of records; write one record per line, or call a file with one list .json"
    plain_keys = {normalise_name(key) for key in record}

    def count_shared(name: str) -> int:
        reads = KEYS if name == OWN else FORMS[name].reads
        return len({normalise_name(key) for key in reads} & plain_keys - _COMMON_NAMES)

    closest = max(FORMS, key=count_shared)
    if not count_shared(closest):
        closest = OWN
    keys = ", ".join(islice(map(str, record), 12))
    example = FORMS[closest].example.replace("\n", "\\n")
    first = json.dumps(record, ensure_ascii=False, default=str)
    first = first if len(first) <= LONGEST_EXAMPLE else f"{first[:LONGEST_EXAMPLE]}..."
    return (
        f"{path}: unknown format; its keys are {keys}, its first record is {first}. The closest format is --format "
        f"{closest}, e.g. {example}. Rename keys with --columns OURS=THEIRS; docs/how-to/exports.md lists all formats."
    )


def _add_hint(name: str) -> str:
    return f"{name}{_suggest_key(name)}"


def _suggest_key(name: str) -> str:
    """Suggest which of our keys a column may mean; "" for none."""
    ours = ALSO_CALLED.get(normalise_name(name))
    near = [ours] if ours else get_close_matches(str(name), [key for key in KEYS if len(key) > 4], 1, 0.85)
    return f" (if it is {near[0]}: --columns {near[0]}={name})" if near else ""
