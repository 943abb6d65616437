"""Snapshots of the served catalog: items that no list can write are refused, and nothing of removed ones stays."""

import copy
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.inference.served_catalog.journal import FILE
from convrec.inference.served_catalog.snapshot import ItemSpellings, add_names
from tests.convrec.inference.served_catalog.films import LIMITS, NEW, find_ids, ids, write_catalog
from tests.user_errors import refuses

SPELLINGS = [("a", "Toy Story", 1995), ("b", "Seven", 1995), ("b", "Se7en", 1996)]


def test_the_line_of_an_items_other_row_is_also_taken(serve: Any, tmp_path: Path) -> None:
    file, state = write_catalog(tmp_path, SPELLINGS), tmp_path / "state"
    catalog = serve(state, file)
    other = {"item_id": "n", "title": "Se7en", "year": 1996}
    journal = (state / FILE).read_bytes()
    with refuses("changes.refused-item", "item_id 'n'", "'b' has the same line"):
        catalog.put([other])
    assert (ids(catalog), (state / FILE).read_bytes()) == ({"a", "b"}, journal)
    catalog.put([{"item_id": "b", "title": "Seven", "year": 1997}, other])  # b no longer has that line
    assert ids(serve(state, file)) == {"a", "b", "n"}


def add_special_tokens(tokenizer: Any) -> Any:
    """Add `<|im_end|>`, which does not look like HTML and so stays in titles, and a token that no setting names."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.backend_tokenizer.add_special_tokens(["<|end_of_text|>"])
    assert "<|end_of_text|>" not in tokenizer.all_special_tokens
    return tokenizer


@pytest.mark.parametrize(
    "item",
    [{"title": "Foo <|im_end|> Bar"}, {"title": "Foo", "display": "<|im_end|>"}, {"title": "Foo <|end_of_text|> Bar"}],
)
def test_a_title_with_a_special_token_is_refused(serve: Any, state: Path, line_tokenizer: Any, item: dict) -> None:
    catalog = serve(state, tokenizer=add_special_tokens(line_tokenizer))
    with refuses("changes.refused-item", "item_id 'n': 'Foo ", "special token"):
        catalog.put([{"item_id": "m", "title": "Ronin", "year": 1998}, {"item_id": "n", "year": 1999, **item}])
    assert (len(catalog), len((state / FILE).read_text().splitlines())) == (5, 1)


def test_items_that_no_list_can_write_are_left_out_of_a_state(
    serve: Any, state: Path, line_tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(state)
    with (state / FILE).open("a") as file:
        file.write('{"n": {"title": "Foo <|im_end|> Bar", "year": 1999}, "b": {"title": "<|im_end|>", "year": 1999}}\n')
        file.write(
            '{"m": {"title": "Piranesi", "year": null}, "o": {"name": "Dune"}, "p": {"title": "1. X", "year": 1}}\n'
        )
    catalog = serve(state, tokenizer=add_special_tokens(line_tokenizer))
    assert (ids(catalog), len(catalog.problems)) == ({"a", "b", "c", "d", "300"}, 5)
    assert "left out: item_id 'm': year None" in capsys.readouterr().err
    assert find_ids(catalog, "Heat (1995)") == {"b"}


def test_a_title_too_long_for_lists_is_refused(serve: Any, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a title of 482 characters was accepted, and then no list could be written."""
    long = {"item_id": "long", "title": "Wor " * 120, "year": 1998}
    longest = serve().snapshot.trie.longest_list(3)
    catalog = serve(state, max_items=3, max_tokens=longest + 40)
    before = catalog.snapshot
    with refuses("changes.refused-item", "item_id 'long': its line takes", "a list of 3"):
        catalog.put([NEW, long])
    assert catalog.snapshot is before
    several = [{"item_id": str(n), "title": f"{'Wor ' * 10}{n}", "year": 1998} for n in range(9)]
    with refuses("changes.refused-item", "its line takes"):  # each of them would fit alone
        catalog.put([NEW, *several])
    catalog.put([NEW, several[0]])
    with (state / FILE).open("a") as file:  # as written with a model that has a longer context
        file.write('{"long": {"title": "' + long["title"] + '", "year": 1998}, "b": null}\n')
    for served in (catalog, serve(state, max_items=3, max_tokens=longest + 40)):
        assert ids(served) == {"a", "c", "d", "300", "n", "0"}
        assert served.snapshot.trie.longest_list(served.max_items) <= longest + 40
    assert "left out: item_id 'long': its line takes" in capsys.readouterr().err
    assert ids(serve(state)) == {"a", "c", "d", "300", "n", "0", "long"}


def test_titles_too_long_for_lists_are_found_in_few_checks(serve: Any, state: Path) -> None:
    """Regression: 10,000 of them took a minute, during which other lists were slow."""
    catalog = serve(state, max_items=3, max_tokens=serve().snapshot.trie.longest_list(3) + 40)
    long = [{"item_id": f"n{n}", "title": f"{'Wor ' * n}{n}", "year": 1998} for n in range(20, 120)]
    with mock.patch.object(CatalogTrie, "longest_list", autospec=True, side_effect=CatalogTrie.longest_list) as looks:
        with refuses("changes.refused-item", "its line takes", "a list of 3"):
            catalog.put([NEW, *long])
        with (state / FILE).open("a") as file:  # as written with a model that has a longer context
            file.write(json.dumps({record.pop("item_id"): record for record in [dict(NEW), *map(dict, long)]}) + "\n")
        assert "n" in ids(catalog)
    assert looks.call_count < 30
    assert catalog.snapshot.trie.longest_list(3) <= catalog.max_tokens


def test_the_largest_list_fits_in_the_context(serve: Any) -> None:
    assert serve().max_items == LIMITS["max_items"]
    longest = [serve().snapshot.trie.longest_list(count) for count in (1, 3)]
    assert [serve(max_tokens=tokens * 10 // 9 + 1).max_items for tokens in longest] == [1, 3]
    catalog = serve(max_tokens=longest[1] * 10 // 9 + 1)
    catalog.put([{**NEW, "title": "Heats"}])  # uses the tenth that stays free
    assert catalog.snapshot.trie.longest_list(3) > longest[1]
    assert serve(max_items=3, max_tokens=longest[1]).max_items == 3  # no tenth is needed if all requested items fit
    with refuses("catalog.line-too-long", "catalog.parquet", f"{longest[0]} tokens"):
        serve(max_tokens=longest[0] - 1)


def test_neither_memory_nor_files_grow_with_changes(serve: Any, tmp_path: Path, state: Path) -> None:
    catalog = serve(state)

    def size() -> tuple[int, ...]:
        lines = catalog.snapshot.trie.trie
        return len(lines.row_W), len(lines.tokens), len(catalog.snapshot.named)

    catalog.put([{**NEW, "year": 1998}])
    before = size()
    for year in [1999, 1998] * 20:
        catalog.put([{**NEW, "year": year}])
    assert size() == before
    assert [*(tmp_path / "tries").glob("trie-*")] == [catalog.snapshot.trie.path]


def test_names_that_many_items_share_are_added_in_linear_time() -> None:
    class CountedNames(dict[str, tuple[int, ...]]):
        """Counts the numbers that its values have, when they are set."""

        num_written = 0

        def __setitem__(self, key: str, numbers: tuple[int, ...]) -> None:
            self.num_written += len(numbers)
            super().__setitem__(key, numbers)

    def make_spellings(numbers: range) -> list[ItemSpellings]:
        return [ItemSpellings(number, ("Greatest Hits",), (f"Greatest Hits [{number}]",)) for number in numbers]

    named = CountedNames()
    add_names(named, make_spellings(range(1000)))
    assert named["greatest hits"] == tuple(range(1000))
    assert named.num_written <= 4 * 1000  # a title, its folded form, a line for each item
    add_names(named, make_spellings(range(1000, 1002)))
    assert named["greatest hits"] == tuple(range(1002))
