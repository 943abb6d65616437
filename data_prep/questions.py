"""Demonstrations that ask: in a share of rows, at random, with a rule's answers (docs/explanation/method.md 10).

A row becomes one for each of its turns: questions, then its list, in which items that fit what was told come first.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import SFT_SCHEMA, get_truth
from convrec.features.asking.attributes import Attributes, load_attributes
from convrec.features.asking.turns import MAX_TURNS, question_text, with_answer
from convrec.features.asking.users import Asked, RuleUser, draw
from convrec.lists.ranks import split_lines
from convrec.titles.matching import Matcher
from data_prep.tables import TableNumbers, message

QUESTION_IDS = tuple(f"_q{number}" for number in range(1, MAX_TURNS))  # end the sample_id of a question's row
ASK_SHARE = 0.3  # of the turns that may ask, of rows whose wanted items the catalog has
SPLITS = ("train", "validation")  # of demonstrations
HELP = "demonstrations that ask about these columns of the catalog, or decade"


def add_questions(
    folder: Path, ask: Sequence[str], matcher: Matcher, num_items: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, int]]:
    """Rewrite the tables of demonstrations in `folder`, asking about `ask`; (their numbers, counts of questions).

    Rows of `train` and `validation` that have no demonstration get one: what training wants most often, without what
    the conversation has seen. Raises UserError for attributes that the catalog cannot be asked about.
    """
    attributes = load_attributes(folder / "catalog.parquet", ask)
    files = {name: folder / f"{name}.parquet" for split in SPLITS for name in (split, f"sft_{split}")}
    tables = {name: pq.read_table(file).to_pylist() if file.exists() else [] for name, file in files.items()}
    wanted = Counter(item for row in tables["train"] for item in matcher.wanted_rows(get_truth(row)))
    popular = [row for row, _ in wanted.most_common()]
    maker = _Maker(
        attributes=attributes,
        matcher=matcher,
        user=RuleUser(attributes, seed),
        popular=popular,
        lines=matcher.catalog.lines,
        num_items=num_items,
    )
    numbers = dict[str, Any]()
    questions = dict[str, int]()
    for split in SPLITS:
        demonstrated = {row["sample_id"] for row in tables[f"sft_{split}"]}
        rows = tables[f"sft_{split}"] + [row for row in tables[split] if row["sample_id"] not in demonstrated]
        made = [turn for row in rows for turn in maker.turns(row)]
        if made:
            there = filter(Path.exists, (files[split], files[f"sft_{split}"]))  # with columns of their own
            schema = pa.unify_schemas([SFT_SCHEMA, *map(pq.read_schema, there)])
            pq.write_table(pa.Table.from_pylist(made, schema), files[f"sft_{split}"])
            of_table = TableNumbers()
            for row in made:
                of_table.add(row["prompt"][0]["content"], get_truth(row))
            numbers[f"sft_{split}"] = of_table.summary(matcher)
        questions[f"questions_of_sft_{split}"] = sum(row["sample_id"].endswith(QUESTION_IDS) for row in made)
    return numbers, questions


class _Maker(NamedTuple):
    attributes: Attributes
    matcher: Matcher
    user: RuleUser
    popular: Sequence[int]
    lines: Sequence[str]  # of the catalog
    num_items: int

    def turns(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        wanted = self.matcher.wanted_rows(get_truth(row))
        random = draw(self.user.seed, row["sample_id"], "turns")
        prompt = row["prompt"][0]["content"]
        told: dict[str, list[str]] = {}
        left = list(self.attributes.names) if wanted else []
        while left and len(told) < MAX_TURNS - 1 and random.random() < ASK_SHARE:
            name = left.pop(random.randrange(len(left)))
            question = {"prompt": message("user", prompt), "completion": message("assistant", question_text(name))}
            yield row | question | {"sample_id": f"{row['sample_id']}_q{len(told) + 1}"}
            (answer,) = self.user.answers([Asked(row["sample_id"], wanted, name, prompt)])
            told[name] = self.attributes.named(name, answer)
            prompt = with_answer(prompt, name, answer)
        completion = row.get("completion")
        if completion is None or told:
            lines = split_lines(completion[0]["content"]) if completion else []
            completion = message("assistant", "\n".join(self.make_list(lines, row["seen_titles"] or (), told)))
        if completion[0]["content"]:
            yield row | {"prompt": message("user", prompt), "completion": completion}

    def make_list(self, lines: Sequence[str], seen: Sequence[str], told: dict[str, list[str]]) -> list[str]:
        """The demonstration's items and, behind them, popular ones, by what was told."""
        excluded = set(self.matcher.seen_rows(seen))
        own = [row for row in self.matcher.match_lines(lines, (), None).catalog_index if row >= 0]
        rows = [row for row in dict.fromkeys([*own, *self.popular]) if row not in excluded]
        return [self.lines[row] for row in self.attributes.by_what_was_told(rows, told)[: self.num_items]]
