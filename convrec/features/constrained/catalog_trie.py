"""The trie of a catalog's lines, and which lines are the same item; built once and cached next to the catalog.

The file holds the tokens of the lines, which take longest to compute; each process builds the trie from them. The
file's name includes a hash of all inputs, so that it is never used with another catalog, tokenizer or matching. The
catalog's part is hashed as it was read, because its file may have been replaced since then.
"""

import contextlib
import itertools
import json
import os
import threading
import zipfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached

from convrec.base.errors import UserError
from convrec.base.files import atomic_write, file_hash
from convrec.base.same_request import digest
from convrec.features.constrained.lines import LineTokens, encode_lines
from convrec.features.constrained.trie import Int32s, Int64s, Trie, build_trie
from convrec.lists.ranks import WHITESPACE
from convrec.titles.catalog import Catalog
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher

# The roots of lines that the delimiter follows, of last lines, which the end of the sequence follows, and of whatever
# follows a whole list: the end of the sequence again. vLLM may ask for one more token than it uses.
INNER = 0
LAST = 1
END = 2
# The roots of a list's first line if its tokens differ from those of the lines below it.
FIRST = 3
ONLY = 4
Rows = Sequence[int]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MAX_CACHED_LINES = 2**21  # lines of a process's cached tries together, a million of which take 400 MiB
MAX_CACHED_ITEMS = 2**16  # items whose paths in the trie are cached: lists contain few of a large catalog's items


@dataclass(frozen=True)
class CatalogTrie:
    """W lines that a list may contain, in the trie once for each position in a list.

    Sequence w is line w inside a list, W + w the same line at the end. If first lines have different tokens
    (`LineTokens`), 2 W + w is line w at the top of a list, and 3 W + w as the whole list.

    Attributes:
        tokens: of all sequences, concatenated; last lines and whole lists include the end of the sequence.
        ends_S: where in `tokens` each sequence ends.
        row_W: the catalog row of each line, ascending.
        item_W: the item of each line, as its first catalog row. Lines of one item (its spellings) exclude each other.
        left_out: rows with a title and a year but no line, since matching reads the line as another item or as none
            (Matcher.match_lines).
        eos_token_id: the end of the sequence.
        questions: the tokens of the questions that a turn may ask instead of a list, each with the end of the sequence;
            a walk opens those of its turn.
        has_first_forms: whether first lines have different tokens.
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

        The questions are below both roots at which a list may begin.
        """
        num_lines = len(self.row_W)
        other_sequences = [(self.eos_token_id,), *self.questions, *self.questions]
        tokens = np.append(self.tokens, np.array([*itertools.chain(*other_sequences)], np.int32))
        ends_S = np.append(self.ends_S, len(self.tokens) + np.cumsum([*map(len, other_sequences)]))
        roots = [*self.line_roots, END, *self.start_roots]
        counts = [*[num_lines] * self.num_forms, 1, len(self.questions), len(self.questions)]
        return build_trie(tokens, ends_S, np.repeat(np.array(roots, np.int32), counts))

    @property
    def line_roots(self) -> tuple[int, ...]:
        """The roots of the line forms, in the order of their sequences."""
        return (INNER, LAST, FIRST, ONLY) if self.has_first_forms else (INNER, LAST)

    @cached_property
    def start_roots(self) -> tuple[int, int]:
        """The roots at which a list begins: for several lines, and for a single line."""
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

    def count_tokens_by_form(self) -> list[Int64s]:
        """Return the number of tokens of each line, for each form."""
        return np.split(np.diff(self.ends_S, prepend=0), self.num_forms)

    def find_root(self, num_written: int, num_left: int) -> int:
        """Return the root of the next line of a list.

        Args:
            num_written: lines written so far.
            num_left: lines still to write.
        """
        if num_left == 0:
            return END
        root_of_several, root_of_last = self.start_roots if num_written == 0 else (INNER, LAST)
        return root_of_several if num_left > 1 else root_of_last

    @cached_property
    def _lines_sorted_by_item(self) -> tuple[memoryview, memoryview]:
        order = np.argsort(self.item_W, kind="stable")
        return order.data, self.item_W[order].data

    def find_lines(self, item: int) -> list[int]:
        """Return the lines that write an item; empty for an item that is not in the trie."""
        order, items = self._lines_sorted_by_item
        return order[bisect_left(items, item) : bisect_right(items, item)].tolist()

    @cached_property
    def closing_paths(self) -> Callable[[int], tuple[Rows, ...]]:
        """Maps an item to the `find_closing_path` of each of its sequences; empty for an item not in the trie."""
        return lru_cache(MAX_CACHED_ITEMS)(self._find_closing_paths)

    def _find_closing_paths(self, item: int) -> tuple[Rows, ...]:
        num_lines = len(self.row_W)
        lines = self.find_lines(item)
        sequences = [form * num_lines + line for line in lines for form in range(self.num_forms)]
        return tuple(map(self.find_closing_path, sequences))

    def find_closing_path(self, sequence: int) -> Rows:
        """Return the nodes from the first one that only this sequence has up to its root."""
        parent_L = self.trie.parent_L
        path = [int(self.trie.own_S[sequence])]
        while path[-1] > self.last_root:
            path.append(int(parent_L[path[-1]]))
        return path

    @cached_property
    def items(self) -> Int32s:
        """The items of all lines, ascending."""
        return np.unique(self.item_W)

    @property
    def num_items(self) -> int:
        return len(self.items)

    def longest_list(self, num_items: int) -> int:
        """Return the number of tokens of the longest list or question, with the end of the sequence.

        If first lines have different tokens, this is an upper bound: too high by at most the tokens that they add.

        Args:
            num_items: different items in the list.
        """
        inner_W, last_W, *first_forms = self.count_tokens_by_form()
        items, item_of_W = np.unique(self.item_W, return_inverse=True)
        inner_M, last_M = np.zeros((2, len(items)), np.int64)
        np.maximum.at(inner_M, item_of_W, inner_W)
        np.maximum.at(last_M, item_of_W, last_W)
        order = np.argsort(-inner_M, kind="stable")
        top = order[:num_items]
        others = order[num_items:]
        tokens = inner_M[top].sum() + (last_M - inner_M)[top].max(initial=-1)
        if len(others):  # an item outside the longest may be the last, in place of the shortest of them
            tokens = max(tokens, inner_M[top[:-1]].sum() + last_M[others].max())
        if first_forms:
            first_W, only_W = first_forms
            longer_W = only_W - last_W if num_items == 1 else first_W - inner_W
            tokens += longer_W.max(initial=0)
        return max(int(tokens), *map(len, self.questions), 0)

    def most_items(self, most: int, max_tokens: int) -> int:
        """Find how many items a list may have so that every such list fits in a token limit.

        Args:
            most: the most items to return.
            max_tokens: the limit, with the end of the sequence.

        Returns:
            The largest number of items; 0 if one item may not fit.
        """
        return bisect_right(range(1, most + 1), max_tokens, key=self.longest_list)


def make_trie(lines: LineTokens, rows: Rows, items: Rows, left_out: Rows, eos: int) -> CatalogTrie:
    """Make the trie of encoded lines.

    Args:
        lines: the tokens of each line.
        rows: the catalog row of each line.
        items: the item of each line, as its first catalog row.
        left_out: rows without a line.
        eos: the end of the sequence.
    """
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


def cache_tries(
    load: Callable[[K], V], count_lines: Callable[[V], int], *, most: int, num_lines: int
) -> Callable[[K], V]:
    """Return `load` with a cache of the tries that were used last, safe among threads.

    A trie weighs as much as its lines, and all cached ones at most as much as MAX_CACHED_LINES. So a selection of a few
    items does not push the trie of a large catalog out.

    Args:
        load: returns a trie, or what holds one.
        count_lines: returns the number of its lines.
        most: the largest number of cached tries, however small they are.
        num_lines: of the catalog; the trie of all its lines is cached even if there are more than MAX_CACHED_LINES.
    """
    capacity = max(MAX_CACHED_LINES, num_lines)

    def weigh(loaded: V) -> int:
        return min(max(count_lines(loaded), capacity // most), capacity)

    return cached(LRUCache(capacity, getsizeof=weigh), lock=threading.Lock())(load)


def select_lines(trie: CatalogTrie, keep_W: npt.NDArray[np.bool_]) -> CatalogTrie:
    """Return the trie of the selected lines only, with all questions.

    Args:
        trie: the trie of W lines.
        keep_W: True for the lines to keep.
    """
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
    """Return the trie of the lines of both, those of the first before those of the second.

    The caller numbers the second's rows after the first's. Both must use the same tokenizer, so that their lines have
    the same forms.

    Args:
        first: the trie whose questions the result has.
        second: the trie of the further lines.
    """
    both = (first, second)
    lengths = [trie.count_tokens_by_form() for trie in both]
    tokens = [
        np.split(trie.tokens, np.cumsum([form_W.sum() for form_W in forms])[:-1])
        for trie, forms in zip(both, lengths, strict=True)
    ]
    return replace(
        first,
        tokens=_interleave_forms(tokens),
        ends_S=_interleave_forms(lengths).cumsum(),
        row_W=np.concatenate([first.row_W, second.row_W]),
        item_W=np.concatenate([first.item_W, second.item_W]),
        left_out=np.concatenate([first.left_out, second.left_out]),
    )


def _interleave_forms(forms_by_trie: Sequence[Sequence[npt.NDArray[Any]]]) -> npt.NDArray[Any]:
    """Concatenate arrays: the first form of each trie, then the second form of each, and so on."""
    return np.concatenate([part for parts in zip(*forms_by_trie, strict=True) for part in parts])


def find_excluded_items(matcher: Matcher, seen: Iterable[str]) -> list[int]:
    """Return the items, as their first rows, that matching counts as seen if the conversation names these titles."""
    return sorted({matcher.index.items[row] for row in matcher.seen_rows(seen)})


def count_items_left(trie: CatalogTrie, excluded: Iterable[int]) -> int:
    """Count the items that a list may contain if some are excluded.

    Args:
        trie: the lines.
        excluded: the excluded items, each once, as their first rows; items without a line count nothing.
    """
    return trie.num_items - sum(bool(trie.find_lines(item)) for item in excluded)


def check_length(
    trie: CatalogTrie, catalog: Catalog, catalog_file: str | Path, num_items: int, max_tokens: int, setting: str
) -> None:
    """Check that every list fits in the token limit.

    Args:
        trie: the lines.
        catalog: for the message.
        catalog_file: for the message.
        num_items: items in a list.
        max_tokens: the limit.
        setting: the setting that gives the limit, with its separator: `--max-response-length ` or `NAME=`.

    Raises:
        UserError: a list can be longer.
    """
    longest = trie.longest_list(num_items)
    if longest > max_tokens:
        row = int(trie.row_W[np.argmax(trie.count_tokens_by_form()[0])])
        raise UserError(
            "constraint.list-too-long",
            f"{setting}{max_tokens}: {num_items} items can take {longest} tokens (the longest is row {row} of "
            f"{catalog_file}, {catalog.titles[row]!r}). Set it to {longest}.",
        )


def describe_left_out_rows(trie: CatalogTrie, catalog: Catalog, catalog_file: str | Path) -> list[str]:
    """Return a warning if some rows of the catalog are in no list, else no sentence.

    Args:
        trie: the lines.
        catalog: the catalog that the trie was built from.
        catalog_file: its file, for the warning.
    """
    if not len(trie.left_out):
        return []
    row = int(trie.left_out[0])
    line = format_item(catalog.titles[row], catalog.years[row])  # type: ignore[arg-type]
    return [
        f"{catalog_file}: {len(trie.left_out)} rows are in no constrained list, since matching reads their lines as "
        f"another item or as none; the first is row {row}, {line!r}"
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
    """Load the trie of a catalog from its cache file, or build it.

    The file is `CATALOG.trie-KEY.npz` next to the catalog, or in `spare_folder` if that folder is not writable.

    Args:
        catalog_file: where the catalog was read from. It gives the trie's file its folder and name, and is not read.
        matcher: holds the catalog, and decides which item a line is.
        tokenizer: the policy's tokenizer.
        delimiter: between two lines.
        spare_folder: where to write the file if the catalog's folder is read-only.
        allowed_rows: catalog rows that lists may name; None for all.
        keep: whether to write the file.
        questions: the questions that a turn may ask instead of a list.

    Returns:
        The trie, and the path of its file.

    Raises:
        UserError: see `build_catalog_trie`.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    catalog = matcher.catalog
    key = digest(
        {
            "code": _code_digest(),
            "matching": [matcher.mode, matcher.year_tolerance, matcher.fuzzy_cutoff, version("pyspellchecker")],
            "delimiter": delimiter,
            "tokenizer": [tokenizer.eos_token_id, backend.to_str() if backend else ""],
            "catalog": [catalog.titles, catalog.years, catalog.aliases, matcher.index.items],
            "allowed_rows": None if allowed_rows is None else sorted(allowed_rows),
        }
        | ({"questions": list(questions)} if questions else {})
    )
    folder = catalog_file.parent if os.access(catalog_file.parent, os.W_OK) else spare_folder
    path = folder / f"{catalog_file.name}.trie-{key[:16]}.npz"
    with contextlib.suppress(FileNotFoundError, UserError):  # a file that is damaged or has other items is replaced
        trie = load_catalog_trie(path)
        if [matcher.index.items[row] for row in trie.row_W.tolist()] == trie.item_W.tolist():
            return trie, path
    trie = build_catalog_trie(matcher, tokenizer, delimiter, allowed_rows, questions)
    if keep:
        save_catalog_trie(path, trie)
    return trie, path


@cache
def _code_digest() -> str:
    """Hash the source files and tables that decide which lines there are and which item each one is.

    A file that other code made is then not used.
    """
    here = Path(__file__)
    lists_and_titles = [file for name in ("lists", "titles") for file in (here.parents[2] / name).glob("*.*")]
    sources = [here, here.with_name("lines.py"), *sorted(lists_and_titles)]
    return digest([file_hash(source) for source in sources])


def build_catalog_trie(
    matcher: Matcher,
    tokenizer: Any,
    delimiter: str,
    allowed_rows: Collection[int] | None = None,
    questions: Sequence[str] = (),
) -> CatalogTrie:
    """Encode the lines of a catalog, and keep those that matching reads back as the same item.

    Args:
        matcher: holds the catalog, and decides which item a line is.
        tokenizer: the policy's tokenizer.
        delimiter: between two lines.
        allowed_rows: catalog rows that lists may name; None for all.
        questions: the questions that a turn may ask instead of a list.

    Raises:
        UserError: the tokenizer has no end-of-sequence token, or encodes a list differently from its lines
            (`encode_lines`); two items have the same line; a question reads as an item; or no line is left.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise UserError(
            "constraint.no-end-token",
            f"tokenizer {tokenizer.name_or_path} has no end-of-sequence token, which must end a list. Use another "
            "model.",
        )
    catalog = matcher.catalog
    allowed = range(len(catalog)) if allowed_rows is None else sorted(set(allowed_rows))
    rows = [row for row in allowed if catalog.years[row] is not None]
    lines = [format_item(catalog.titles[row], catalog.years[row]) for row in rows]  # type: ignore[arg-type]
    tokens = encode_lines(tokenizer, lines, delimiter)

    candidates = _find_unique_lines(catalog, matcher, rows, lines, tokens.last)
    read_back = _read_back(matcher, tokenizer, delimiter, tokens.select(candidates).inner)
    usable: list[int] = []
    left_out: list[int] = []
    for index, item in zip(candidates, read_back, strict=True):
        own_item = matcher.index.items[rows[index]]
        (usable if item == own_item else left_out).append(index)
    if not usable:
        raise UserError(
            "constraint.no-lines",
            "constrained lists: matching reads no line of the catalog back as its own item. Check the catalog's "
            "titles, and the delimiter.",
        )
    trie = make_trie(
        lines=tokens.select(usable),
        rows=[rows[index] for index in usable],
        items=[matcher.index.items[rows[index]] for index in usable],
        left_out=[rows[index] for index in left_out],
        eos=eos,
    )
    return _add_questions(trie, matcher, tokenizer, delimiter, questions) if questions else trie


def _read_back(matcher: Matcher, tokenizer: Any, delimiter: str, tokens: Sequence[Sequence[int]]) -> list[int | None]:
    """Return the item that matching reads from each encoded line, as its first row; None for no line or no item."""
    texts = tokenizer.backend_tokenizer.decode_batch(tokens, skip_special_tokens=True)
    special = set(tokenizer.all_special_ids)
    rows = matcher.match_lines([text.strip(WHITESPACE) for text in texts], (), None).catalog_index
    items: list[int | None] = []
    for text, line_tokens, row in zip(texts, tokens, rows, strict=True):
        is_one_line = text.endswith(delimiter) and text.count(delimiter) == 1
        is_readable = is_one_line and special.isdisjoint(line_tokens)
        items.append(matcher.index.items[row] if is_readable and row >= 0 else None)
    return items


def _add_questions(
    trie: CatalogTrie, matcher: Matcher, tokenizer: Any, delimiter: str, questions: Sequence[str]
) -> CatalogTrie:
    """Return the trie with questions; raise UserError for a question that reads as an item."""
    for text in questions:
        if matcher.match_lines([text], (), None).catalog_index[0] >= 0:
            raise UserError(
                "constraint.question-is-item",
                f"the question {text!r} reads as an item of the catalog. Rename the attribute.",
            )
    tokens = encode_lines(tokenizer, questions, delimiter).whole_texts
    return replace(trie, questions=tuple((*question, trie.eos_token_id) for question in tokens))


def _find_unique_lines(
    catalog: Catalog, matcher: Matcher, rows: Sequence[int], lines: Sequence[str], tokens: Sequence[list[int]]
) -> list[int]:
    """Return the indices of lines without duplicates. Rows of one item may share a line, rows of two items may not."""
    first: dict[tuple[int, ...], int] = {}
    unique = []
    for index, line_tokens in enumerate(tokens):
        other = first.setdefault(tuple(line_tokens), index)
        if other == index:
            unique.append(index)
        elif matcher.index.items[rows[other]] != matcher.index.items[rows[index]]:
            raise UserError(
                "constraint.ambiguous-line",
                f"catalog rows {rows[other]} and {rows[index]} are two items with the same line, {lines[index]!r}, so "
                "a list cannot tell them apart. Change the title or year of one, or give both the same item_id.",
            )
    return unique


ARRAYS = {"tokens": np.int32, "ends_S": np.int64, "row_W": np.int32, "item_W": np.int32, "left_out": np.int32}


def save_catalog_trie(path: Path, trie: CatalogTrie) -> None:
    """Write a trie's lines to an .npz file."""
    arrays = {name: getattr(trie, name) for name in ("eos_token_id", "has_first_forms", *ARRAYS)}
    arrays["questions"] = json.dumps(trie.questions)
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def load_catalog_trie(path: Path) -> CatalogTrie:
    """Read a file that `save_catalog_trie` wrote, without unpickling anything.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: the file is damaged.
    """
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
        raise UserError(
            "constraint.damaged-trie", f"{path}: not a readable trie of catalog lines ({error}). Remove it."
        ) from None
    lengths = (trie.num_forms * len(trie.row_W), len(trie.row_W), len(trie.tokens))
    if (len(trie.ends_S), len(trie.item_W), int(trie.ends_S[-1]) if len(trie.ends_S) else -1) != lengths:
        raise UserError("constraint.damaged-trie", f"{path}: the arrays do not fit together. Remove it.")
    return trie
