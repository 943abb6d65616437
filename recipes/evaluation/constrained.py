"""Constrained lists of a model: what they may hold, and the check that they hold nothing else."""

from collections.abc import Mapping
from pathlib import Path

from convrec.base.errors import UserError
from convrec.checkpoints.files import check_hugging_face
from convrec.data.tokenizer import load_tokenizer
from convrec.features.constrained.catalog_trie import (
    catalog_trie,
    check_length,
    excluded_items,
    items_left,
    left_out_warnings,
)
from convrec.inference.answers import Answer
from convrec.inference.generate import Constraint
from convrec.lists.ranks import split_lines
from convrec.lists.settings import ListSettings
from convrec.titles.catalog import SUFFIXES, load_catalog
from convrec.titles.item import parse_item
from convrec.titles.matching import Matcher
from recipes.evaluation.baselines import API
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.split import Split

WRONG = ("out_of_catalog", "repeated", "seen", "wrong_length")  # what no constrained list has


def make_constraint(
    options: EvaluationOptions, split: Split, model: str, lists: ListSettings
) -> tuple[Constraint, list[str]]:
    """What the lists of the split's prompts may hold, and warnings.

    A prompt's exclusions are what any of its rows has seen. The trie is kept beside the catalog, in `out` where that
    folder may not be written. Raises UserError for a model behind an endpoint, a catalog or tokenizer that the trie
    cannot take, an allowed part (`allow`: read_allowed) that is too small for a prompt, and too few tokens for a list.
    """
    if model.startswith(API):
        raise UserError(f"--constrained: {model} is behind an endpoint; its decoding cannot be constrained from here")
    if Path(model).is_dir():
        check_hugging_face(Path(model))
    matcher = split.matcher
    catalog_file = Path(options.catalog)
    tokenizer, _ = load_tokenizer(model, "--model ", titles=matcher.catalog.titles)
    rows = read_allowed(Path(options.allow), matcher) if options.allow else None
    trie, file = catalog_trie(catalog_file, matcher, tokenizer, lists.delimiter, Path(options.out), rows)
    exclude = {prompt: excluded_items(matcher, titles) for prompt, titles in _seen(split).items()}
    for prompt, items in exclude.items():
        if (left := items_left(trie, items)) < lists.num_items:
            raise UserError(
                f"{options.allow or catalog_file}: of its {trie.num_items} items {left} are not seen in the "
                f"conversation of {split.rows[split.prompt_ids.index(prompt)]['sample_id']}, and a list has "
                f"{lists.num_items}: allow more items, or give a smaller --num-items"
            )
    max_tokens = options.max_response_length
    check_length(trie, split.catalog, catalog_file, lists.num_items, max_tokens, "--max-response-length ")
    return Constraint(str(file), lists.num_items, exclude), left_out_warnings(trie, split.catalog, catalog_file)


def read_allowed(file: Path, matcher: Matcher) -> set[int]:
    """The catalog rows of the items in a file: one `Title (Year)` a line, or a catalog of its own (.parquet, .pkl).

    Raises UserError for an item that the catalog lacks, and for a file without any.
    """
    if not file.is_file():
        raise UserError(f"--allow {file}: no such file")
    if file.suffix in SUFFIXES:
        part = load_catalog(file)
        named = [(f"row {row}", part.titles[row], year) for row, year in enumerate(part.years) if year is not None]
    else:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise UserError(f"--allow {file}: no UTF-8 ({error}); write one `Title (Year)` a line") from None
        named = [
            (f"line {number}", *(parse_item(line, matcher.catalog.dated) or (line, None)))
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    rows: set[int] = set()
    for where, title, year in named:
        item = matcher.wanted(title, year).index
        if item < 0:
            raise UserError(f"--allow {file}, {where}: {title!r} is no item of the catalog; write `Title (Year)` as it")
        rows.update(matcher.index.rows.get(item, [item]))
    if not rows:
        raise UserError(f"--allow {file}: it names no item")
    return rows


def check_lists(split: Split, answers: Mapping[str, Answer], lists: ListSettings) -> dict[str, int]:
    """Counts over the generated lists: "lists", "lines" and those of WRONG.

    By matching, as rewards and evaluation read lists, not by the trie. Raises RuntimeError where one of WRONG is not 0:
    these lists cannot be wrong.
    """
    counts = dict.fromkeys(("lists", "lines", *WRONG), 0)
    for prompt, seen in _seen(split).items():
        lines = split_lines(answers[prompt]["text"], lists.delimiter)
        matched = split.matcher.match_lines(lines, (), seen)
        counts["lists"] += 1
        counts["lines"] += len(lines)
        counts["out_of_catalog"] += matched.in_catalog.count(False)
        counts["repeated"] += sum(matched.duplicate)
        counts["seen"] += sum(matched.seen)
        counts["wrong_length"] += len(lines) != lists.num_items
    if any(counts[name] for name in WRONG):
        raise RuntimeError(f"constrained lists that break the constraint: {counts}")
    return counts


def _seen(split: Split) -> dict[str, set[str]]:
    """prompt_id -> the titles that any row of the prompt has seen; in the order of split.prompts."""
    seen: dict[str, set[str]] = {}
    for prompt, row in zip(split.prompt_ids, split.rows, strict=True):
        seen.setdefault(prompt, set()).update(row["seen_titles"] or ())
    return seen
