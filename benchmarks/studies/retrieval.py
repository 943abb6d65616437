"""A smaller real task: the most mentioned titles of a data set as catalog, and a retrieval teacher's lists for SFT.

    python -m benchmarks.studies.retrieval --source data/redial --out data/redial_small --titles 200 --num-items 10

--source holds train.parquet and validation.parquet (schema.RL_SCHEMA; a sample_id is `conversation_turn`, like
`redial_15875_t6`). Written to --out, whole or not at all:

    catalog.parquet                             the --titles titles that are ground truth most often in train
    train, validation, test.parquet             rows with a ground truth in the catalog (its others are dropped), asked
                                                for --num-items; test is held out of train by whole conversations
    sft_titles, sft_train, sft_validation       the teacher's lists: for short prompts that only name titles, for every
      .parquet                                  cut of a training conversation after a user's turn, for validation

A model from scratch learns what goes with what from sft_titles in a minute or two; from conversations alone it stays
long at the same popular list for everyone. So: SFT on sft_titles, then on sft_train.
The teacher (retrieval_teacher.py beside this) has read the training conversations only, never the one it answers.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.studies.retrieval_teacher import RetrievalTeacher, list_text
from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder
from convrec.base.progress import Progress
from convrec.data.schema import (
    CATALOG_SCHEMA,
    RL_SCHEMA,
    SFT_SCHEMA,
    TRUTH,
    TURN,
    Pair,
    conversation_text,
    format_prompt,
    get_group_id,
    get_truth,
)
from convrec.data.validation import validate_rl_table
from convrec.lists.metrics import evaluate_row, popularity_baseline, summarise
from convrec.lists.ranks import parse_items
from convrec.titles.catalog import Catalog, parse_year
from convrec.titles.item import Item
from convrec.titles.matching import Matcher
from data_prep.tables import check_out, message


def hold_out(rows: list[dict], at_least: int, seed: int) -> tuple[list[dict], list[dict]]:
    """Hold out whole conversations.

    Args:
        rows: of any number of conversations.
        at_least: conversations are drawn until so many rows are held out.
        seed: random seed of the draw.

    Returns:
        The remaining rows, and those held out.
    """
    sizes = Counter(get_group_id(row) for row in rows)
    names = sorted(sizes)
    order = np.random.default_rng(seed).permutation(len(names))
    out: set[str] = set()
    count = 0
    for index in order:
        if count >= at_least:
            break
        out.add(names[index])
        count += sizes[names[index]]
    is_out = [get_group_id(row) in out for row in rows]
    return (
        [row for row, held in zip(rows, is_out, strict=True) if not held],
        [row for row, held in zip(rows, is_out, strict=True) if held],
    )


def most_mentioned(rows: list[dict], count: int) -> dict[Pair, int]:
    """Return the ground truths that are in most rows.

    Args:
        rows: the rows; ground truths without a year do not count.
        count: how many to return.

    Returns:
        Title and year -> the number of rows, most first; ties by name.
    """
    truths = (dict.fromkeys(get_truth(row)) for row in rows)
    mentions = Counter(pair for truth in truths for pair in truth if parse_year(pair[1]) is not None)
    return dict(sorted(mentions.items(), key=lambda entry: (-entry[1], entry[0]))[:count])


def reduce_rows(rows: list[dict], catalog: Iterable[Pair], num_items: int) -> list[dict]:
    """Reduce rows to a smaller catalog.

    Args:
        rows: those without a ground truth in the catalog are left out.
        catalog: title and year of each item.
        num_items: the number that the new prompts ask for.
    """
    known = set(catalog)
    reduced = []
    for row in rows:
        if truth := [pair for pair in get_truth(row) if pair in known]:
            reduced.append(_row(row, conversation_text(row), row["sample_id"], row["seen_titles"], truth, num_items))
    return reduced


def cuts(rows: list[dict], num_items: int) -> list[dict]:
    """Cut each conversation after every turn of its user.

    A conversation is the longest of its rows' prompts. The cuts have no ground truth: they are for demonstrations.

    Args:
        rows: the rows.
        num_items: the number that the new prompts ask for.

    Returns:
        A row per cut, with the seen titles that it names.
    """
    longest: dict[str, dict] = {}
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        name = get_group_id(row)
        seen.setdefault(name, {}).update(dict.fromkeys(row["seen_titles"]))
        if name not in longest or len(conversation_text(row)) > len(conversation_text(longest[name])):
            longest[name] = row
    result = []
    for name, row in longest.items():
        text = conversation_text(row)
        turns = list(TURN.finditer(text))
        next_turns = [turn.start() for turn in turns[1:]] + [len(text)]
        ends = [end for turn, end in zip(turns, next_turns, strict=False) if turn[1] == "USER"]
        for turn, end in enumerate(ends):
            named = [title for title in seen[name] if f"{title} (" in text[:end]]
            result.append(_row(row, text[:end], f"{name}_t{turn}", named, [], num_items))
    return result


def title_prompts(rows: list[dict], num_items: int, count: int, seed: int) -> list[dict]:
    """Make short prompts that only name one to three titles of a training conversation.

    Args:
        rows: the training rows.
        num_items: the number that the prompts ask for.
        count: number of prompts; none are made if no conversation names a title.
        seed: random seed of the titles.
    """
    texts: dict[str, str] = {}
    named: dict[str, set[str]] = {}
    for row in rows:
        name = get_group_id(row)
        texts[name] = max(texts.get(name, ""), conversation_text(row), key=len)
        named.setdefault(name, set()).update(row["seen_titles"])
    with_year = {
        name: {title: match[0] for title in sorted(titles) if (match := _with_year(title).search(texts[name]))}
        for name, titles in named.items()
    }
    names = [name for name, titles in with_year.items() if titles]
    rng = np.random.default_rng(seed)
    result = []
    for index in range(count if names else 0):
        name = names[rng.integers(len(names))]
        titles = list(with_year[name])
        chosen = [titles[i] for i in rng.permutation(len(titles))[: rng.integers(1, 4)]]
        text = "USER: I like " + ", ".join(with_year[name][title] for title in chosen) + "\n"
        row = {"prompt": [{"role": "user"}]}
        result.append(_row(row, text, f"{name}_t{index}", chosen, [], num_items))
    return result


def drawn_lists(
    teacher: RetrievalTeacher, rows: list[dict], num_items: int, copies: int, noise: float, seed: int
) -> list[list[Pair]]:
    """Draw lists item by item from softmax(score / noise) of what is left (Gumbel's trick).

    Args:
        teacher: scores the items.
        rows: the rows.
        num_items: length of a list.
        copies: lists per row, which follow each other.
        noise: 0 gives the best list.
        seed: random seed of the draws.
    """
    rng = np.random.default_rng(seed)
    lists = []
    for start in Progress(range(0, len(rows), 256), desc="train", unit="block"):
        scores_BM = np.repeat(teacher.scores(rows[start : start + 256]), copies, axis=0)
        scores_BM += noise * rng.gumbel(size=scores_BM.shape)
        for order in np.argsort(-scores_BM, axis=1, kind="stable"):
            lists.append([teacher.catalog[m] for m in order[:num_items]])
    return lists


def with_lists(rows: list[dict], lists: list[list[Pair]]) -> list[dict]:
    """Return rows of the SFT table.

    Args:
        rows: the rows.
        lists: one per row.
    """
    return [
        row | {"completion": message("assistant", list_text(items))} for row, items in zip(rows, lists, strict=True)
    ]


def _with_year(title: str) -> re.Pattern[str]:
    return re.compile(re.escape(title) + r" \((?:18|19|20)\d\d\)")


def _row(
    row: dict, conversation: str, sample_id: str, seen: Sequence[str], truth: Sequence[Pair], num_items: int
) -> dict:
    return {
        "prompt": [{"content": format_prompt(conversation, num_items), "role": row["prompt"][0]["role"]}],
        "seen_titles": list(seen),
        TRUTH: [list(pair) for pair in truth],
        "sample_id": sample_id,
    }


def write_reduced(
    source: str | os.PathLike,
    out: str | os.PathLike,
    *,
    titles: int = 200,
    num_items: int = 10,
    test_rows: int = 600,
    lists_per_cut: int = 1,
    noise: float = 0.0,
    title_rows: int = 8000,
    seed: int = 3407,
) -> dict[str, dict[str, dict]]:
    """Write the tables of a smaller task.

    Args:
        source: folder with train.parquet and validation.parquet.
        out: a new folder, which appears as a whole or not at all.
        titles: size of the catalog.
        num_items: length of lists, at most half of the catalog.
        test_rows: rows of train to hold out, at least.
        lists_per_cut: demonstrations per prompt of sft_train.
        noise: of these demonstrations; 0: the best list.
        title_rows: rows of sft_titles.
        seed: random seed of everything that is drawn.

    Returns:
        "validation" and "test" -> "popularity" and "teacher" -> metrics.summarise.

    Raises:
        UserError: `out` exists, an argument is wrong, or the source has too few titles.
    """
    source, out = Path(source), Path(out)
    check_out(out)
    if not 1 <= num_items <= titles // 2:
        raise UserError(
            "study.invalid-num-items", f"--num-items {num_items}: must be from 1 to half of --titles ({titles})"
        )
    if min(test_rows, lists_per_cut, title_rows) < 1 or noise < 0:
        raise UserError(
            "study.invalid-counts",
            f"--test-rows {test_rows}, --lists-per-cut {lists_per_cut}, --title-rows {title_rows}, --noise {noise}: "
            "must be at least 1, 1, 1 and 0",
        )
    sources = {split: source / f"{split}.parquet" for split in ("train", "validation")}
    for path in sources.values():
        validate_rl_table(path, allow_empty_ground_truth=True)
    all_train, validation = (pq.read_table(path, columns=RL_SCHEMA.names).to_pylist() for path in sources.values())
    train, test = hold_out(all_train, test_rows, seed)
    mentions = most_mentioned(train, titles)
    if len(mentions) < titles or not test:
        raise UserError(
            "study.too-few-titles",
            f"{sources['train']}: {len(mentions)} ground-truth titles remain for --titles {titles} when {len(test)} "
            "rows are held out. Lower --titles or --test-rows.",
        )
    catalog = list(mentions)
    splits = {"train": train, "validation": validation, "test": test}
    reduced = {split: reduce_rows(rows, catalog, num_items) for split, rows in splits.items()}
    for split, rows in reduced.items():
        if not rows:
            raise UserError(
                "study.no-ground-truth",
                f"{split}: no row has one of the {titles} titles as ground truth. Raise --titles.",
            )
    teacher = RetrievalTeacher(train, catalog)
    prompts = cuts(train, num_items)
    copies = [row | {"sample_id": f"{row['sample_id']}.{copy}"} for row in prompts for copy in range(lists_per_cut)]
    lists = {split: teacher.lists(reduced[split], num_items, split) for split in ("validation", "test")}
    demonstrations = {
        "sft_train": with_lists(copies, drawn_lists(teacher, prompts, num_items, lists_per_cut, noise, seed)),
        "sft_validation": with_lists(reduced["validation"], lists["validation"]),
    }
    short = title_prompts(train, num_items, title_rows, seed)
    demonstrations["sft_titles"] = with_lists(short, teacher.lists(short, num_items, "titles"))
    films = [{"title": title, "year": parse_year(year), "mentions": count} for (title, year), count in mentions.items()]
    tables = {
        "catalog": pa.Table.from_pylist(films, CATALOG_SCHEMA.append(pa.field("mentions", pa.int32()))),
        **{split: pa.Table.from_pylist(rows, RL_SCHEMA) for split, rows in reduced.items()},
        **{name: pa.Table.from_pylist(rows, SFT_SCHEMA) for name, rows in demonstrations.items()},
    }
    with atomic_write_folder(out) as partial:
        for name, table in tables.items():
            pq.write_table(table, partial / f"{name}.parquet")
    return {split: _compare(reduced, split, lists[split], catalog, num_items) for split in ("validation", "test")}


def _compare(
    reduced: dict[str, list[dict]], split: str, lists: list[list[Pair]], catalog: list[Pair], num_items: int
) -> dict[str, dict]:
    """Popularity and the teacher on a split, protocol `paper`."""
    known = Catalog.from_items(catalog)
    matcher = Matcher(known)
    rows = reduced[split]
    popular = popularity_baseline(map(get_truth, reduced["train"]), Matcher(known, "exact"), num_items)
    answers: dict[str, list[list[Item | None]]] = {
        "popularity": [list(popular)] * len(rows),
        "teacher": [parse_items(row["completion"][0]["content"]) for row in with_lists(rows, lists)],
    }
    contexts = [row["prompt"][0]["content"] for row in rows]
    results = {}
    for name, answer in answers.items():
        scored = [
            evaluate_row(items, get_truth(row), row["seen_titles"], matcher, ks=(num_items,))
            for row, items in zip(rows, answer, strict=True)
        ]
        results[name] = summarise(scored, (num_items,), contexts, num_items=num_items)
    return results


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.retrieval", description=__doc__.split("\n")[0])
    parser.add_argument("--source", required=True, help="folder with train.parquet and validation.parquet")
    parser.add_argument("--out", required=True, help="folder to write; must not be there")
    parser.add_argument("--titles", type=int, default=200, help="catalog: the most mentioned ones (%(default)s)")
    parser.add_argument("--num-items", type=int, default=10, help="items of a list (%(default)s)")
    parser.add_argument("--test-rows", type=int, default=600, help="rows of train to hold out, at least (%(default)s)")
    parser.add_argument("--lists-per-cut", type=int, default=1, help="demonstrations of a prompt (%(default)s)")
    parser.add_argument("--noise", type=float, default=0.0, help="of sft_train's lists; 0: the best one (%(default)s)")
    parser.add_argument("--title-rows", type=int, default=8000, help="rows of sft_titles (%(default)s)")
    parser.add_argument("--seed", type=int, default=3407, help="of the rows held out and of what is drawn")
    given = vars(parser.parse_args(argv))
    try:
        results = write_reduced(given.pop("source"), given["out"], **{k: v for k, v in given.items() if k != "out"})
    except UserError as error:
        parser.exit(2, f"{error.as_line()}\n")
    print(f"wrote {given['out']}")
    k = given["num_items"]
    for split, models in results.items():
        for name, result in models.items():
            figures = "  ".join(
                f"{metric}@{k} {result[f'{metric}@{k}']['mean']:.4f} ± {result[f'{metric}@{k}']['se']:.4f}"
                for metric in ("recall", "ndcg")
            )
            print(f"{split:>10} {name:>10}  {figures}  distinct {result['distinct_items']}  n {result['n']}")


if __name__ == "__main__":
    main()
