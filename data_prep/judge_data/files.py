"""Files of records -> what each record says, with its place for whatever is said about it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from convrec.data.damage import BadRecord, Damage, place_of
from convrec.data.records import read_records
from convrec.judges.criteria import Scores
from convrec.judges.schema import row_problem
from data_prep.judge_data.formats import items_of, source_of
from data_prep.judge_data.records import Item


class Loaded(NamedTuple):
    """A record. place: like `ratings.jsonl: line 3`."""

    items: list[Item]
    source: str
    place: str


def load(paths: Sequence[str | Path], mode: str, scores: Scores, form: str | None = None) -> list[Loaded]:
    """The records of files. form: a key of FORMATS; None: each record's columns tell.

    Raises UserError that names the broken records and the fix.
    """
    loaded, damage = [], Damage()
    for path in map(Path, paths):
        for row, record in read_records(path, damage):
            try:
                items = items_of(record, form, scores)
                for item in items:
                    if isinstance(item, dict) and (problem := row_problem(item, mode, scores, ties=True)):
                        raise BadRecord(problem)
                source = source_of(record, path.name.partition(".")[0])
                loaded.append(Loaded(items, source, place_of(path.name, row)))
            except BadRecord as error:
                damage.add(path, row, error)
    damage.check()
    return loaded
