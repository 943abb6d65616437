"""The trie of a catalog's lines: its lists, its file, its length, and the catalogs that it refuses."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from convrec.base.files import file_hash
from convrec.features.constrained import catalog_trie as module
from convrec.features.constrained.catalog_trie import (
    MAX_CACHED_LINES,
    CatalogTrie,
    build_catalog_trie,
    cache_tries,
    catalog_trie,
    check_length,
    find_excluded_items,
    join_lines,
    select_lines,
)
from convrec.features.constrained.lines import LINES_PER_CHECK, encode_lines
from convrec.features.constrained.walk import Walk
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.matching import Matcher
from tests.convrec.features.constrained.conftest import BYTE_LEVEL, DUMMY_PREFIX
from tests.convrec.small_tokenizers import DUMMY_PREFIXES, read_sentencepiece, train_sentencepiece
from tests.user_errors import refuses

ITEMS = [("Toy Story", 1995), ("Heat", 1995), ("Alien", 1979)]


def test_a_list_is_its_lines_one_after_the_other(catalog: CatalogTrie, matcher: Matcher, tokenizer: Any) -> None:
    """The trie's tokens, concatenated, are the tokenizer's tokens of the whole list."""
    lines = len(catalog.row_W)
    sequences = np.split(catalog.tokens, catalog.ends_S[:-1])
    chosen = [4, 0, 9, 5]
    written = np.concatenate([sequences[line] for line in chosen[:-1]] + [sequences[lines + chosen[-1]]])
    items = [matcher.catalog.titles[catalog.row_W[line]] for line in chosen]
    years = [matcher.catalog.years[catalog.row_W[line]] for line in chosen]
    text = "\n".join(f"{title} ({year})" for title, year in zip(items, years, strict=True))
    assert written.tolist() == [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


@pytest.mark.parametrize("before", [1, LINES_PER_CHECK - 1, LINES_PER_CHECK, LINES_PER_CHECK + 1])
def test_tokenizer_merging_newline_with_next_line_is_refused(before: int) -> None:
    """Wherever the line is among those that are checked together."""
    vocabulary = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    backend = Tokenizer(BPE(vocab=vocabulary | {"ĊZ": 256, "<end>": 257}, merges=[("Ċ", "Z")]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    joining = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", name_or_path="joining")
    with refuses("constraint.merged-lines", "tokenizer joining", "'Zodiac'", "'Film"):
        encode_lines(joining, [*(f"Film {number}" for number in range(before)), "Zodiac"], "\n")


@pytest.mark.parametrize("kind", DUMMY_PREFIXES)
@pytest.mark.parametrize("num_items", [1, 2])
def test_trie_with_dummy_prefix_allows_exactly_all_item_lists(
    kind: str, num_items: int, matcher: Matcher, tmp_path: Path
) -> None:
    """Each item at the top and below it, in the tokenizer's tokens of the whole list (Mistral 7B, Phi-3)."""
    lines = [f"{title} ({year})" for title, year in zip(matcher.catalog.titles, matcher.catalog.years, strict=True)]
    backend = read_sentencepiece(train_sentencepiece(tmp_path, lines * 4), kind)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    trie = build_catalog_trie(matcher, tokenizer, "\n")
    assert trie.has_first_forms
    assert trie.row_W.tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 10, 11]
    texts = ["\n".join(lines[row] for row in rows) for rows in permutations(trie.row_W.tolist(), num_items)]
    two_spellings = {f"{lines[a]}\n{lines[b]}" for a, b in ((3, 4), (4, 3))}
    encoded = tokenizer([text for text in texts if text not in two_spellings], add_special_tokens=False)["input_ids"]
    expected = [[*tokens, tokenizer.eos_token_id] for tokens in encoded]
    assert sorted(written_lists(trie, num_items)) == sorted(expected)
    assert 0 <= trie.longest_list(num_items) - max(map(len, expected)) <= 1


def written_lists(trie: CatalogTrie, num_items: int) -> Iterator[list[int]]:
    """Yield every list that the trie lets a model write."""
    begun: list[list[int]] = [[]]
    while begun:
        tokens = begun.pop()
        walk = Walk(trie, num_items)
        for token in tokens:
            walk.advance(token)
        if len(walk.items) == num_items:
            yield tokens
        else:
            begun += [[*tokens, token] for token in walk.allowed()]


def test_spellings_share_an_item_and_equal_lines_are_stored_once(catalog: CatalogTrie) -> None:
    assert catalog.row_W.tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 10, 11]  # row 7 is row 5's line
    assert catalog.item_W.tolist() == [0, 1, 2, 3, 3, 5, 6, 9, 10, 11]  # Amélie is Amelie
    assert (catalog.find_lines(3), catalog.find_lines(7), catalog.num_items) == ([3, 4], [], 9)
    assert catalog.left_out.tolist() == [8]  # reads as Heat of 1995


def test_items_that_matching_counts_as_seen_are_excluded(matcher: Matcher) -> None:
    assert find_excluded_items(matcher, ["AMÉLIE", "Heat", "the aliens!", "Nothing"]) == [3, 5, 6, 10]


def test_trie_file_is_next_to_catalog_and_specific_to_its_inputs(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data" / "catalog.parquet"
    file.parent.mkdir()
    titles, years = zip(*ITEMS, strict=True)
    pq.write_table(pa.table({"title": titles, "year": years}), file)
    matcher = Matcher(load_catalog(file))
    made, path = catalog_trie(file, matcher, tokenizer, "\n", tmp_path)
    assert path.parent == file.parent
    with monkeypatch.context() as no_build:
        no_build.delattr(module, "build_catalog_trie")
        again, same = catalog_trie(file, matcher, tokenizer, "\n", tmp_path)
    assert (same, again.eos_token_id) == (path, made.eos_token_id)
    assert all((getattr(again, name) == getattr(made, name)).all() for name in ("tokens", "ends_S", "row_W", "item_W"))
    others = [
        catalog_trie(file, matcher, tokenizer, "\n", tmp_path, allowed_rows=[0, 2])[1],
        catalog_trie(file, matcher, tokenizer, "|", tmp_path)[1],
        catalog_trie(file, Matcher(load_catalog(file), "exact"), tokenizer, "\n", tmp_path)[1],
    ]
    assert len({path, *others}) == 4
    path.write_bytes(path.read_bytes()[:-20])
    with refuses("constraint.damaged-trie", path):
        module.load_catalog_trie(path)
    assert (catalog_trie(file, matcher, tokenizer, "\n", tmp_path)[0].tokens == made.tokens).all()  # rebuilt
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert catalog_trie(file, matcher, tokenizer, "\n", tmp_path)[1].parent == tmp_path


def test_trie_of_a_catalog_whose_file_was_replaced_has_no_file_that_the_new_one_finds(
    tmp_path: Path, tokenizer: Any
) -> None:
    """A shop's export replaces the file between a process's reading of it and its trie."""
    file = tmp_path / "catalog.parquet"

    def export(titles: list[str]) -> None:
        pq.write_table(pa.table({"title": titles, "year": [1995] * len(titles)}), file)

    export(["Toy Story", "Heat", "Alien"])
    before = Matcher(load_catalog(file))
    export(["Toy Story", "Heat", "Fargo"])
    trie_before, path_before = catalog_trie(file, before, tokenizer, "\n", tmp_path)
    assert (trie_before.tokens == build_catalog_trie(before, tokenizer, "\n").tokens).all()
    now = Matcher(load_catalog(file))
    trie_now, path_now = catalog_trie(file, now, tokenizer, "\n", tmp_path)
    assert (trie_now.tokens == build_catalog_trie(now, tokenizer, "\n").tokens).all()
    assert path_now != path_before


def test_trie_file_is_specific_to_everything_that_matching_reads_of_the_catalog(tmp_path: Path, tokenizer: Any) -> None:
    columns: dict[str, list[Any]] = {
        "title": ["Toy Story", "Heat", "Heat"],
        "year": [1995, 1995, 1986],
        "item_id": ["a", "b", "c"],
        "aliases": [[], ["Hitze"], []],
    }
    changes: list[dict[str, list[Any]]] = [
        {},
        {"title": ["Toy Story", "Heat", "Heats"]},
        {"year": [1995, 1995, 1987]},
        {"item_id": ["a", "b", "b"]},
        {"aliases": [[], ["Fuego"], []]},
    ]
    file = tmp_path / "catalog.parquet"
    matchers = [Matcher(Catalog.from_columns(columns | change)) for change in changes]
    paths = [catalog_trie(file, matcher, tokenizer, "\n", tmp_path)[1] for matcher in matchers]
    assert len({*paths}) == len(changes)


def test_a_trie_file_that_other_code_made_is_not_used(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's name has a hash of the code; a file whose rows are different items is rebuilt."""
    file = tmp_path / "catalog.parquet"
    titles, years = zip(*ITEMS, strict=True)
    pq.write_table(pa.table({"title": titles, "year": years}), file)
    matcher = Matcher(load_catalog(file))
    made, path = catalog_trie(file, matcher, tokenizer, "\n", tmp_path)
    module.save_catalog_trie(path, replace(made, item_W=made.item_W[::-1].copy()))
    assert (catalog_trie(file, matcher, tokenizer, "\n", tmp_path)[0].item_W == made.item_W).all()
    for edited in (".py", ".yaml"):  # code, and its tables
        module._code_digest.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(module, "file_hash", lambda one, end=edited: "new" if one.suffix == end else file_hash(one))
            assert catalog_trie(file, matcher, tokenizer, "\n", tmp_path)[1] != path
    module._code_digest.cache_clear()


def test_two_items_with_one_line_are_named(tokenizer: Any) -> None:
    catalog = Catalog.from_items([("Heat", 1995), ("Up", 2009), ("Heat", 1995)], item_ids=["a", "b", "c"])
    with refuses("constraint.ambiguous-line", "rows 0 and 2", "'Heat (1995)'"):
        build_catalog_trie(Matcher(catalog), tokenizer, "\n")


def test_lines_that_read_as_something_else_are_left_out(tokenizer: Any) -> None:
    items = [("Heat", 1995), ("1. Heat", 1995), ("Up\nDown", 2009), ("<end>", 2001), ("Up", 2009), ("", 2000)]
    trie = build_catalog_trie(Matcher(Catalog.from_items(items)), tokenizer, "\n")
    assert (trie.row_W.tolist(), trie.left_out.tolist()) == ([0, 4], [1, 2, 3])


def count_loads(most: int, num_lines: int, requested: Sequence[int]) -> list[int]:
    """Return which tries are loaded, in this order, if tries of so many lines are requested one after the other."""
    loaded = []

    def load(size: int) -> int:
        loaded.append(size)
        return size

    load_cached = cache_tries(load, lambda size: size, most=most, num_lines=num_lines)
    for size in requested:
        assert load_cached(size) == size
    return loaded


def test_a_small_selection_does_not_push_the_trie_of_a_large_catalog_out() -> None:
    whole, half, few, one = 1_000_000, 500_000, 2, 1
    assert count_loads(8, whole, [whole, half, few, one, whole, half]) == [whole, half, few, one]
    assert count_loads(8, whole, [whole, half, 600_000, whole, half]) == [whole, half, 600_000, whole, half]


def test_so_many_tries_are_cached_however_small_they_are() -> None:
    assert count_loads(3, 100, [1, 2, 3, 1, 2, 3]) == [1, 2, 3]
    assert count_loads(3, 100, [1, 2, 3, 4, 1]) == [1, 2, 3, 4, 1]


def test_the_trie_of_the_largest_catalog_is_cached_even_after_items_were_added() -> None:
    assert count_loads(8, 50_000_000, [50_000_000, 50_000_000]) == [50_000_000]
    assert count_loads(8, MAX_CACHED_LINES, [MAX_CACHED_LINES + 1, MAX_CACHED_LINES + 1]) == [MAX_CACHED_LINES + 1]


def test_lines_of_a_large_catalog_are_encoded_in_parts(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer's record of a line is many times as large as its ids, so only a part of the lines has one."""

    class CountingBackend:
        largest = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer.backend_tokenizer, name)

        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            self.largest = max(self.largest, len(texts))
            return tokenizer.backend_tokenizer.encode_batch_fast(texts, **options)

    lines = [f"Film {number} ({1990 + number})" for number in range(30)]
    whole = encode_lines(tokenizer, lines, "\n")
    backend = CountingBackend()
    monkeypatch.setattr("convrec.features.constrained.lines.LINES_PER_CALL", 4)
    assert encode_lines(SimpleNamespace(backend_tokenizer=backend), lines, "\n") == whole
    assert backend.largest == 4


def test_the_longest_list_is_of_the_longest_different_lines(catalog: CatalogTrie, matcher: Matcher) -> None:
    lengths = np.diff(catalog.ends_S, prepend=0)
    lines = len(catalog.row_W)
    for count in (1, 2, 3):  # against every list of some items
        every = permutations(range(lines), count)
        lists = [chosen for chosen in every if len(set(catalog.item_W[list(chosen)].tolist())) == count]
        longest = max(lengths[[*chosen[:-1], lines + chosen[-1]]].sum() for chosen in lists)
        assert catalog.longest_list(count) == longest
        assert (catalog.most_items(9, longest), catalog.most_items(9, longest - 1)) == (count, count - 1)
    assert catalog.longest_list(99) == catalog.longest_list(catalog.num_items)
    assert catalog.most_items(2, 10_000) == 2
    row = catalog.row_W[lengths[:lines].argmax()]
    check_length(catalog, matcher.catalog, "c.parquet", 3, catalog.longest_list(3), "LENGTH=")
    with refuses("constraint.list-too-long", "LENGTH=9", f"row {row} of c.parquet"):
        check_length(catalog, matcher.catalog, "c.parquet", 3, 9, "LENGTH=")


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, DUMMY_PREFIX], indirect=True)
def test_lines_are_selected_and_joined_whole(catalog: CatalogTrie) -> None:
    def lines(trie: CatalogTrie) -> set[tuple]:
        """Return (row, item, the tokens of each form) for each line."""
        parts = [tuple(part.tolist()) for part in np.split(trie.tokens, trie.ends_S[:-1])]
        forms = [parts[form :: len(trie.row_W)] for form in range(len(trie.row_W))]
        return set(zip(trie.row_W.tolist(), trie.item_W.tolist(), map(tuple, forms), strict=True))

    keep_W = np.arange(len(catalog.row_W)) % 2 == 0
    even, odd = select_lines(catalog, keep_W), select_lines(catalog, ~keep_W)
    assert lines(even) | lines(odd) == lines(join_lines(even, odd)) == lines(catalog)
    assert {row for row, *_ in lines(even)} == set(catalog.row_W[keep_W].tolist())
    assert join_lines(select_lines(catalog, keep_W & False), odd).trie.token_L.tolist() == odd.trie.token_L.tolist()
