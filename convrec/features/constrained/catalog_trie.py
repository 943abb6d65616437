"""A catalog's lines as a trie, with which of them are one item; made once, kept beside the catalog.

The file has the tokens of the lines, which take longest to make; the trie is built from them in every process. Its name
has a key of everything that it depends on, so that a file never goes with another catalog, tokenizer or matching.
"""

import contextlib
import itertools
import json
import os
import zipfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convrec.base.errors import UserError
from convrec.base.files import file_hash, written_whole
from convrec.base.same_request import digest
from convrec.features.constrained.lines import LineTokens, encode_lines
from convrec.features.constrained.trie import Int32s, Int64s, Trie, build_trie
from convrec.lists.ranks import WHITESPACE
from convrec.titles.catalog import Catalog
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher

# The roots: of lines with the delimiter behind them, of last lines, which the end of the sequence follows, and of what
# comes behind a whole list: the end of the sequence again. vLLM may ask for one more token than it uses.
INNER = 0
LAST = 1
END = 2
# The roots of the first line of a list, where it has other tokens than the lines below it.
FIRST = 3
ONLY = 4
Rows = Sequence[int]
REMEMBERED = 2**16  # items whose places in the trie are kept: lists write few of a large catalog's


@dataclass(frozen=True)
class CatalogTrie:
    """W lines that a list may hold, in the trie once for each place where a line may stand.

    Sequence w is line w inside of a list, W + w as its last. Where first lines have tokens of their own (`LineTokens`),
    2 W + w is line w at the top of a list, and 3 W + w as the whole list.

    Attributes:
        tokens: of all sequences, one after the other; last and whole lists have the end of the sequence.
        ends_S: where in `tokens` each sequence ends.
        row_W: the row of the catalog that a line writes, ascending.
        item_W: the item that a line is, as the first row of it. Lines of one item, its spellings, exclude each other.
        left_out: rows with a title and a year that no line writes, since the line reads as another item or as none
            (Matcher.match_lines).
        eos_token_id: the end of the sequence.
        questions: the tokens of what a turn may ask in place of a list, each with the end of the sequence; a walk opens
            those of its turn.
        has_first_forms: whether first lines have tokens of their own.
    """

    tokens: Int32s
    ends_S: Int64s
    row_W: Int32s
    item_W: Int32s
    left_out: Int32s
    eos_token_id: int
    questions: tuple[tuple[int, ...], ...] = ()
    has_first_forms: bool = False

    @cached_property
    def trie(self) -> Trie:
        """The lines in all their forms, then the end of the sequence below END, then the questions.

        The questions stand below both roots at which a list may begin.
        """
        num_lines = len(self.row_W)
        further = [(self.eos_token_id,), *self.questions, *self.questions]
        tokens = np.append(self.tokens, np.array([*itertools.chain(*further)], np.int32))
        ends_S = np.append(self.ends_S, len(self.tokens) + np.cumsum([*map(len, further)]))
        roots = [*self.line_roots, END, *self.start_roots]
        counts = [*[num_lines] * self.num_forms, 1, len(self.questions), len(self.questions)]
        return build_trie(tokens, ends_S, np.repeat(np.array(roots, np.int32), counts))

    @property
    def line_roots(self) -> tuple[int, ...]:
        """The roots of the lines, in the order of their sequences."""
        return (INNER, LAST, FIRST, ONLY) if self.has_first_forms else (INNER, LAST)

    @cached_property
    def start_roots(self) -> tuple[int, int]:
        """The roots at which a list begins: one of several lines, and one of a single line."""
        return (FIRST, ONLY) if self.has_first_forms else (INNER, LAST)

    @cached_property
    def num_forms(self) -> int:
        """How many times each line is in the trie."""
        return len(self.line_roots)

    @cached_property
    def last_root(self) -> int:
        """The last of the trie's roots, which are its first nodes."""
        return max(*self.line_roots, END)

    @cached_property
    def first_question(self) -> int:
        """The number of the first question's sequence."""
        return self.num_forms * len(self.row_W) + 1

    def lengths_of_forms(self) -> list[Int64s]:
        """Return the numbers of tokens of the lines, form by form."""
        return np.split(np.diff(self.ends_S, prepend=0), self.num_forms)

    def root(self, num_written: int, num_left: int) -> int:
        """Return the root of the next line of a list that has some lines, and lacks others."""
        if num_left == 0:
            return END
        of_several, of_one = self.start_roots if num_written == 0 else (INNER, LAST)
        return of_several if num_left > 1 else of_one

    @cached_property
    def _by_item(self) -> tuple[memoryview, memoryview]:
        order = np.argsort(self.item_W, kind="stable")
        return order.data, self.item_W[order].data

    def find_lines(self, item: int) -> list[int]:
        """The lines that write an item; none for one that is not in the trie."""
        order, items = self._by_item
        return order[bisect_left(items, item) : bisect_right(items, item)].tolist()

    @cached_property
    def closing_paths(self) -> Callable[[int], tuple[Rows, ...]]:
        """An item's sequences, each as its `closing_path`; none for an item that is not in the trie."""
        return lru_cache(REMEMBERED)(self._find_closing_paths)

    def _find_closing_paths(self, item: int) -> tuple[Rows, ...]:
        num_lines = len(self.row_W)
        lines = self.find_lines(item)
        return tuple(self.closing_path(form * num_lines + line) for line in lines for form in range(self.num_forms))

    def closing_path(self, sequence: int) -> Rows:
        """Return the nodes from a sequence's own first one up to its root."""
        parent_L = self.trie.parent_L
        path = [int(self.trie.own_S[sequence])]
        while path[-1] > self.last_root:
            path.append(int(parent_L[path[-1]]))
        return path

    @cached_property
    def num_items(self) -> int:
        return len(np.unique(self.item_W))

    def longest_list(self, num_items: int) -> int:
        """Return the tokens of the longest list of so many different items, or question, with the end of the sequence.

        Where first lines have tokens of their own it is a bound, at most as many tokens above as these are longer.
        """
        inner_W, last_W, *first_forms = self.lengths_of_forms()
        items, item_of_W = np.unique(self.item_W, return_inverse=True)
        inner_M, last_M = np.zeros((2, len(items)), np.int64)
        np.maximum.at(inner_M, item_of_W, inner_W)
        np.maximum.at(last_M, item_of_W, last_W)
        order = np.argsort(-inner_M, kind="stable")
        top = order[:num_items]
        others = order[num_items:]
        tokens = inner_M[top].sum() + (last_M - inner_M)[top].max(initial=-1)
        if len(others):  # another item is the last, after all of them but the shortest
            tokens = max(tokens, inner_M[top[:-1]].sum() + last_M[others].max())
        if first_forms:
            first_W, only_W = first_forms
            longer_W = only_W - last_W if num_items == 1 else first_W - inner_W
            tokens += longer_W.max(initial=0)
        return max(int(tokens), *map(len, self.questions), 0)

    def most_items(self, most: int, max_tokens: int) -> int:
        """How many items, `most` at most, every list can have within so many tokens."""
        return bisect_right(range(1, most + 1), max_tokens, key=self.longest_list)


def trie_of_lines(lines: LineTokens, rows: Rows, items: Rows, left_out: Rows, eos: int) -> CatalogTrie:
    """Make a trie of lines, each of which writes a row of the catalog and is an item."""
    sequences = [*lines.inner, *([*tokens, eos] for tokens in lines.last)]
    if lines.first is not None and lines.only is not None:
        sequences += [*lines.first, *([*tokens, eos] for tokens in lines.only)]
    return CatalogTrie(
        tokens=np.fromiter(itertools.chain.from_iterable(sequences), np.int32),
        ends_S=np.cumsum([len(sequence) for sequence in sequences], dtype=np.int64),
        row_W=np.array(rows, np.int32),
        item_W=np.array(items, np.int32),
        left_out=np.array(left_out, np.int32),
        eos_token_id=eos,
        has_first_forms=lines.first is not None,
    )


def select_lines(trie: CatalogTrie, keep_W: npt.NDArray[np.bool_]) -> CatalogTrie:
    """Return the trie with these lines alone."""
    lengths_S = np.diff(trie.ends_S, prepend=0)
    keep_S = np.tile(keep_W, trie.num_forms)
    return replace(
        trie,
        tokens=trie.tokens[np.repeat(keep_S, lengths_S)],
        ends_S=lengths_S[keep_S].cumsum(),
        row_W=trie.row_W[keep_W],
        item_W=trie.item_W[keep_W],
    )


def join_lines(first: CatalogTrie, second: CatalogTrie) -> CatalogTrie:
    """The lines of both, those of the first in front. The rows of the second are numbered after those of the first.

    Both are of one tokenizer, so that they have the same forms of lines.
    """
    both = (first, second)
    lengths = [trie.lengths_of_forms() for trie in both]
    tokens = [
        np.split(trie.tokens, np.cumsum([form_W.sum() for form_W in forms])[:-1])
        for trie, forms in zip(both, lengths, strict=True)
    ]
    return replace(
        first,
        tokens=_form_by_form(tokens),
        ends_S=_form_by_form(lengths).cumsum(),
        row_W=np.concatenate([first.row_W, second.row_W]),
        item_W=np.concatenate([first.item_W, second.item_W]),
        left_out=np.concatenate([first.left_out, second.left_out]),
    )


def _form_by_form(forms_of_each: Sequence[Sequence[npt.NDArray[Any]]]) -> npt.NDArray[Any]:
    """Join arrays: the first form of each trie, then the second of each, and so on."""
    return np.concatenate([part for parts in zip(*forms_of_each, strict=True) for part in parts])


def excluded_items(matcher: Matcher, seen: Iterable[str]) -> list[int]:
    """The items, as their first rows, that matching calls seen when these titles are."""
    return sorted({matcher.index.items[row] for row in matcher.seen_rows(seen)})


def items_left(trie: CatalogTrie, excluded: Iterable[int]) -> int:
    """How many items a list may hold when these are excluded."""
    return trie.num_items - sum(bool(trie.find_lines(item)) for item in excluded)


def check_length(
    trie: CatalogTrie, catalog: Catalog, catalog_file: str | Path, num_items: int, max_tokens: int, setting: str
) -> None:
    """Raise UserError when a list may not fit. setting: what stands before max_tokens where it is given."""
    longest = trie.longest_list(num_items)
    if longest > max_tokens:
        row = int(trie.row_W[np.argmax(trie.lengths_of_forms()[0])])
        raise UserError(
            f"{setting}{max_tokens}: {num_items} items can take {longest} tokens (the longest is row {row} of "
            f"{catalog_file}, {catalog.titles[row]!r}): set it to {longest}"
        )


def left_out_warnings(trie: CatalogTrie, catalog: Catalog, catalog_file: str | Path) -> list[str]:
    """A warning where rows are in no list."""
    if not len(trie.left_out):
        return []
    row = int(trie.left_out[0])
    line = format_item(catalog.titles[row], catalog.years[row])  # type: ignore[arg-type]
    return [
        f"{catalog_file}: {len(trie.left_out)} rows are in no constrained list, since what is written for them is read "
        f"as another item or as none; the first: row {row}, {line!r}"
    ]


def catalog_trie(
    catalog_file: Path,
    matcher: Matcher,
    tokenizer: Any,
    delimiter: str,
    spare_folder: Path,
    allowed_rows: Collection[int] | None = None,
    keep: bool = True,
    questions: Sequence[str] = (),
) -> tuple[CatalogTrie, Path]:
    """The trie of the catalog that `matcher` has, and its file: `CATALOG.trie-KEY.npz` beside the catalog, in
    `spare_folder` where that folder may not be written.

    allowed_rows: rows of the catalog that lists may name, None for all. keep: write the file. questions: what a turn
    may ask in place of a list. Raises UserError as `build_catalog_trie`.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    key = digest(
        {
            "code": _code_digest(),
            "matching": [matcher.mode, matcher.year_tolerance, matcher.fuzzy_cutoff, version("pyspellchecker")],
            "delimiter": delimiter,
            "tokenizer": [tokenizer.eos_token_id, backend.to_str() if backend else ""],
            "catalog": file_hash(catalog_file),
            "allowed_rows": None if allowed_rows is None else sorted(allowed_rows),
        }
        | ({"questions": list(questions)} if questions else {})
    )
    folder = catalog_file.parent if os.access(catalog_file.parent, os.W_OK) else spare_folder
    path = folder / f"{catalog_file.name}.trie-{key[:16]}.npz"
    with contextlib.suppress(FileNotFoundError, UserError):  # damaged, or of other items: it is made again
        trie = load_catalog_trie(path)
        if [matcher.index.items[row] for row in trie.row_W.tolist()] == trie.item_W.tolist():
            return trie, path
    trie = build_catalog_trie(matcher, tokenizer, delimiter, allowed_rows, questions)
    if keep:
        save_catalog_trie(path, trie)
    return trie, path


@cache
def _code_digest() -> str:
    """Of the source, tables included, that decides which lines there are and which item each is: a file that other
    code made is not taken."""
    here = Path(__file__)
    of_lines_and_titles = [file for name in ("lists", "titles") for file in (here.parents[2] / name).glob("*.*")]
    sources = [here, here.with_name("lines.py"), *sorted(of_lines_and_titles)]
    return digest([file_hash(source) for source in sources])


def build_catalog_trie(
    matcher: Matcher,
    tokenizer: Any,
    delimiter: str,
    allowed_rows: Collection[int] | None = None,
    questions: Sequence[str] = (),
) -> CatalogTrie:
    """Encode the lines of a catalog and read them back, as matching reads a model's.

    Args:
        matcher: has the catalog, and decides which item a line is.
        tokenizer: of the policy.
        delimiter: between two lines.
        allowed_rows: catalog rows that lists may name; None for all.
        questions: what a turn may ask in place of a list.

    Raises:
        UserError: the tokenizer has no end of the sequence, or writes a list otherwise than its lines in a row
            (`encode_lines`); two items are the same line; a question is an item; or no line is left.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise UserError(f"tokenizer {tokenizer.name_or_path}: it has no end-of-sequence token, by which a list ends")
    catalog = matcher.catalog
    allowed = range(len(catalog)) if allowed_rows is None else sorted(set(allowed_rows))
    rows = [row for row in allowed if catalog.years[row] is not None]
    lines = [format_item(catalog.titles[row], catalog.years[row]) for row in rows]  # type: ignore[arg-type]
    tokens = encode_lines(tokenizer, lines, delimiter)

    candidates = _first_of_each(catalog, matcher, rows, lines, tokens.last)
    read_back = _read_back(matcher, tokenizer, delimiter, tokens.select(candidates).inner)
    kept: list[int] = []
    left_out: list[int] = []
    for index, item in zip(candidates, read_back, strict=True):
        own_item = matcher.index.items[rows[index]]
        (kept if item == own_item else left_out).append(index)
    if not kept:
        raise UserError("constrained lists: no line of the catalog can be written, read back and found again")
    trie = trie_of_lines(
        lines=tokens.select(kept),
        rows=[rows[index] for index in kept],
        items=[matcher.index.items[rows[index]] for index in kept],
        left_out=[rows[index] for index in left_out],
        eos=eos,
    )
    return _with_questions(trie, matcher, tokenizer, delimiter, questions) if questions else trie


def _read_back(matcher: Matcher, tokenizer: Any, delimiter: str, tokens: Sequence[Sequence[int]]) -> list[int | None]:
    """Return the item as which each encoded line is read, as its first row; None where it is no line or no item."""
    texts = tokenizer.backend_tokenizer.decode_batch(tokens, skip_special_tokens=True)
    special = set(tokenizer.all_special_ids)
    rows = matcher.match_lines([text.strip(WHITESPACE) for text in texts], (), None).catalog_index
    items: list[int | None] = []
    for text, line_tokens, row in zip(texts, tokens, rows, strict=True):
        is_one_line = text.endswith(delimiter) and text.count(delimiter) == 1
        is_readable = is_one_line and special.isdisjoint(line_tokens)
        items.append(matcher.index.items[row] if is_readable and row >= 0 else None)
    return items


def _with_questions(
    trie: CatalogTrie, matcher: Matcher, tokenizer: Any, delimiter: str, questions: Sequence[str]
) -> CatalogTrie:
    """Return the trie with what a turn may ask; UserError for a question that reads as an item."""
    for text in questions:
        if matcher.match_lines([text], (), None).catalog_index[0] >= 0:
            raise UserError(f"the question {text!r} reads as an item of the catalog: give the attribute another name")
    tokens = encode_lines(tokenizer, questions, delimiter).whole_texts
    return replace(trie, questions=tuple((*question, trie.eos_token_id) for question in tokens))


def _first_of_each(
    catalog: Catalog, matcher: Matcher, rows: Sequence[int], lines: Sequence[str], tokens: Sequence[list[int]]
) -> list[int]:
    """The indices of lines with tokens of their own. Rows of one item may be the same line, rows of two may not."""
    first: dict[tuple[int, ...], int] = {}
    written = []
    for index, line_tokens in enumerate(tokens):
        other = first.setdefault(tuple(line_tokens), index)
        if other == index:
            written.append(index)
        elif matcher.index.items[rows[other]] != matcher.index.items[rows[index]]:
            raise UserError(
                f"catalog rows {rows[other]} and {rows[index]} are two items with the same line, {lines[index]!r}: a "
                "list cannot say which is meant. Give one another title or year, or both one item_id"
            )
    return written


ARRAYS = {"tokens": np.int32, "ends_S": np.int64, "row_W": np.int32, "item_W": np.int32, "left_out": np.int32}


def save_catalog_trie(path: Path, trie: CatalogTrie) -> None:
    arrays = {name: getattr(trie, name) for name in ("eos_token_id", "has_first_forms", *ARRAYS)}
    arrays["questions"] = json.dumps(trie.questions)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def load_catalog_trie(path: Path) -> CatalogTrie:
    """Read what `save_catalog_trie` has written; no pickles. Raises FileNotFoundError, UserError for a damaged file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name].astype(kind) for name, kind in ARRAYS.items()}
            questions = tuple(map(tuple, json.loads(str(file["questions"]))))
            trie = CatalogTrie(
                eos_token_id=int(file["eos_token_id"]),
                questions=questions,
                has_first_forms=bool(file["has_first_forms"]),
                **arrays,
            )
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not readable as a trie of catalog lines ({error}); remove it") from None
    lengths = (trie.num_forms * len(trie.row_W), len(trie.row_W), len(trie.tokens))
    if (len(trie.ends_S), len(trie.item_W), int(trie.ends_S[-1]) if len(trie.ends_S) else -1) != lengths:
        raise UserError(f"{path}: its arrays do not fit each other; remove it")
    return trie
