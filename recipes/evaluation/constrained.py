"""Constrained lists of a model: which items they may hold, and a check that they hold no others."""

from collections.abc import Mapping
from pathlib import Path

from convrec.base.errors import UserError
from convrec.checkpoints.files import check_hugging_face
from convrec.data.tokenizer import load_tokenizer
from convrec.features.constrained.catalog_trie import (
    catalog_trie,
    check_length,
    count_items_left,
    describe_left_out_rows,
    find_excluded_items,
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

VIOLATIONS = ("out_of_catalog", "repeated", "seen", "wrong_length")  # no constrained list may have any


def make_constraint(
    options: EvaluationOptions, split: Split, model: str, lists: ListSettings
) -> tuple[Constraint, list[str]]:
    """Build the constraint on the lists of a split's prompts.

    The trie is stored next to the catalog, or in `out` where that folder is not writable. A prompt excludes the seen
    titles of all its rows.

    Returns:
        The constraint, and warnings about items that no list can hold.

    Raises:
        UserError: The model is behind an endpoint, the trie does not support the catalog or the tokenizer, `allow`
            leaves too few items for a prompt, or --max-response-length is too short for a list.
    """
    if model.startswith(API):
        raise UserError(
            "evaluation.unconstrained-endpoint",
            f"--constrained: {model} is behind an endpoint, whose decoding cannot be constrained. Drop --constrained.",
        )
    if Path(model).is_dir():
        check_hugging_face(Path(model))
    matcher = split.matcher
    catalog_file = Path(options.catalog)
    tokenizer, _ = load_tokenizer(model, "--model ", titles=matcher.catalog.titles)
    rows = read_allowed_items(Path(options.allow), matcher) if options.allow else None
    trie, file = catalog_trie(catalog_file, matcher, tokenizer, lists.delimiter, Path(options.out), rows)
    exclude = {prompt: find_excluded_items(matcher, titles) for prompt, titles in _collect_seen_titles(split).items()}
    for prompt, items in exclude.items():
        if (left := count_items_left(trie, items)) < lists.num_items:
            sample_id = split.rows[split.prompt_ids.index(prompt)]["sample_id"]
            raise UserError(
                "evaluation.too-few-items",
                f"{options.allow or catalog_file}: {left} of its {trie.num_items} items are unseen in the conversation "
                f"of {sample_id}, but a list has {lists.num_items}. Allow more items, or lower --num-items.",
            )
    max_tokens = options.max_response_length
    check_length(trie, split.catalog, catalog_file, lists.num_items, max_tokens, "--max-response-length ")
    return Constraint(str(file), lists.num_items, exclude), describe_left_out_rows(trie, split.catalog, catalog_file)


def read_allowed_items(file: Path, matcher: Matcher) -> set[int]:
    """Read the items that lists may hold: one `Title (Year)` per line, or a catalog (.parquet, .pkl).

    Returns:
        The items' rows in the matcher's catalog.

    Raises:
        UserError: The file cannot be read, names no item, or names one that is not in the catalog.
    """
    if not file.is_file():
        raise UserError("evaluation.missing-allow-file", f"--allow {file}: no such file")
    if file.suffix in SUFFIXES:
        part = load_catalog(file)
        named = [(f"row {row}", part.titles[row], year) for row, year in enumerate(part.years) if year is not None]
    else:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise UserError(
                "evaluation.undecodable-allow-file",
                f"--allow {file}: not UTF-8 ({error}). Write one `Title (Year)` per line.",
            ) from None
        named = [
            (f"line {number}", *(parse_item(line, matcher.catalog.dated) or (line, None)))
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    rows: set[int] = set()
    for where, title, year in named:
        item = matcher.wanted(title, year).index
        if item < 0:
            raise UserError(
                "evaluation.unknown-allowed-item",
                f"--allow {file}, {where}: {title!r} is not in the catalog. Write `Title (Year)` as the catalog does.",
            )
        rows.update(matcher.index.rows.get(item, [item]))
    if not rows:
        raise UserError(
            "evaluation.no-allowed-items", f"--allow {file}: names no item. Write one `Title (Year)` per line."
        )
    return rows


def check_lists(split: Split, answers: Mapping[str, Answer], lists: ListSettings) -> dict[str, int]:
    """Count the generated lists, their lines and their VIOLATIONS.

    Lines are matched as rewards and evaluation match them, independently of the trie.

    Raises:
        RuntimeError: A violation was found: constrained decoding is broken.
    """
    counts = dict.fromkeys(("lists", "lines", *VIOLATIONS), 0)
    for prompt, seen in _collect_seen_titles(split).items():
        lines = split_lines(answers[prompt]["text"], lists.delimiter)
        matched = split.matcher.match_lines(lines, (), seen)
        counts["lists"] += 1
        counts["lines"] += len(lines)
        counts["out_of_catalog"] += matched.in_catalog.count(False)
        counts["repeated"] += sum(matched.duplicate)
        counts["seen"] += sum(matched.seen)
        counts["wrong_length"] += len(lines) != lists.num_items
    if any(counts[name] for name in VIOLATIONS):
        raise RuntimeError(f"constrained lists violate the constraint: {counts}")
    return counts


def _collect_seen_titles(split: Split) -> dict[str, set[str]]:
    """Collect, by prompt id, the seen titles of all rows with the prompt, in the order of split.prompts."""
    seen: dict[str, set[str]] = {}
    for prompt, row in zip(split.prompt_ids, split.rows, strict=True):
        seen.setdefault(prompt, set()).update(row["seen_titles"] or ())
    return seen
