"""Add demonstrations that ask questions, in a random share of rows, answered by a rule (docs/explanation/method.md 10).

A row becomes one row per turn: its questions, then its list, in which the items that fit the answers come first.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import SFT_SCHEMA, get_truth
from convrec.features.asking.attributes import Attributes, load_attributes
from convrec.features.asking.turns import MAX_TURNS, add_answer, format_question
from convrec.features.asking.users import Asked, RuleUser, draw
from convrec.lists.ranks import split_lines
from convrec.titles.matching import Matcher
from data_prep.tables import TableNumbers, message

QUESTION_IDS = tuple(f"_q{number}" for number in range(1, MAX_TURNS))  # ends of the sample_id of a question's row
ASK_SHARE = 0.3  # share of the turns that ask, in rows with ground truth in the catalog
SPLITS = ("train", "validation")  # that have demonstrations


def add_questions(
    folder: Path, ask: Sequence[str], matcher: Matcher, num_items: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, int]]:
    """Rewrite the tables of demonstrations in a folder so that they ask questions.

    Rows of `train` and `validation` without a demonstration get one: the items that are most often ground truth in
    training, without those that the conversation has seen.

    Args:
        folder: of the tables and catalog.parquet.
        ask: attributes to ask about.
        matcher: of the catalog.
        num_items: items of a list.
        seed: of the questions.

    Returns:
        The numbers of the tables, and counts of questions.

    Raises:
        UserError: The catalog lacks an attribute.
    """
    attributes = load_attributes(folder / "catalog.parquet", ask)
    files = {name: folder / f"{name}.parquet" for split in SPLITS for name in (split, f"sft_{split}")}
    tables = {name: pq.read_table(file).to_pylist() if file.exists() else [] for name, file in files.items()}
    truth_counts = Counter(item for row in tables["train"] for item in matcher.find_relevant_rows(get_truth(row)))
    popular = [row for row, _ in truth_counts.most_common()]
    writer = _DemonstrationWriter(
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
        new_rows = [new_row for row in rows for new_row in writer.iter_turns(row)]
        if new_rows:
            existing = filter(Path.exists, (files[split], files[f"sft_{split}"]))  # they may have extra columns
            schema = pa.unify_schemas([SFT_SCHEMA, *map(pq.read_schema, existing)])
            pq.write_table(pa.Table.from_pylist(new_rows, schema), files[f"sft_{split}"])
            table_numbers = TableNumbers()
            for row in new_rows:
                table_numbers.add(row["prompt"][0]["content"], get_truth(row))
            numbers[f"sft_{split}"] = table_numbers.summary(matcher)
        questions[f"questions_of_sft_{split}"] = sum(row["sample_id"].endswith(QUESTION_IDS) for row in new_rows)
    return numbers, questions


class _DemonstrationWriter(NamedTuple):
    attributes: Attributes
    matcher: Matcher
    user: RuleUser
    popular: Sequence[int]
    lines: Sequence[str]  # the catalog's items as lines
    num_items: int

    def iter_turns(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a row per question, then the row with the list."""
        truth = self.matcher.find_relevant_rows(get_truth(row))
        random = draw(self.user.seed, row["sample_id"], "turns")
        prompt = row["prompt"][0]["content"]
        answers: dict[str, list[str]] = {}
        remaining = list(self.attributes.names) if truth else []
        while remaining and len(answers) < MAX_TURNS - 1 and random.random() < ASK_SHARE:
            name = remaining.pop(random.randrange(len(remaining)))
            question = {"prompt": message("user", prompt), "completion": message("assistant", format_question(name))}
            yield row | question | {"sample_id": f"{row['sample_id']}_q{len(answers) + 1}"}
            (answer,) = self.user.answers([Asked(row["sample_id"], truth, name, prompt)])
            answers[name] = self.attributes.named(name, answer)
            prompt = add_answer(prompt, name, answer)
        completion = row.get("completion")
        if completion is None or answers:
            lines = split_lines(completion[0]["content"]) if completion else []
            completion = message("assistant", "\n".join(self.make_list(lines, row["seen_titles"] or (), answers)))
        if completion[0]["content"]:
            yield row | {"prompt": message("user", prompt), "completion": completion}

    def make_list(self, lines: Sequence[str], seen: Sequence[str], answers: dict[str, list[str]]) -> list[str]:
        """Rank the demonstration's items, then popular ones, by the answers.

        Args:
            lines: the demonstration; lines that are not items are left out.
            seen: titles that must not be in the list.
            answers: attribute -> the values that the user named.

        Returns:
            The lines of the new list.
        """
        excluded = set(self.matcher.seen_rows(seen))
        own = [row for row in self.matcher.match_lines(lines, (), None).catalog_index if row >= 0]
        rows = [row for row in dict.fromkeys([*own, *self.popular]) if row not in excluded]
        return [self.lines[row] for row in self.attributes.rank_by_preferences(rows, answers)[: self.num_items]]
