"""A constrained turn: a question or a list, decided at its first line; no question is asked twice."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from convrec.features.asking.turns import format_question
from convrec.features.constrained.catalog_trie import (
    CatalogTrie,
    build_catalog_trie,
    catalog_trie,
    load_catalog_trie,
    save_catalog_trie,
)
from convrec.features.constrained.choices import ChoiceReader
from convrec.features.constrained.walk import Walk
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from tests.convrec.features.constrained.conftest import BYTE_LEVEL, DUMMY_PREFIX
from tests.user_errors import refuses

pytestmark = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, DUMMY_PREFIX], indirect=True)

QUESTIONS = [format_question(attribute) for attribute in ("genre", "decade")]
ITEMS = (5, 11)  # Heat (1995) and Up (2009)
OTHERS = [item for item in range(12) if item not in ITEMS]


@pytest.fixture(scope="module")
def asking(tokenizer: Any, matcher: Matcher) -> CatalogTrie:
    return build_catalog_trie(matcher, tokenizer, "\n", questions=QUESTIONS)


def whole(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


@pytest.mark.parametrize("num_items", [1, 2])
@pytest.mark.parametrize("open_questions", [(), (0,), (1,), (0, 1)])
def test_exactly_the_open_questions_and_the_lists_can_be_written(
    asking: CatalogTrie, tokenizer: Any, num_items: int, open_questions: tuple[int, ...]
) -> None:
    lists = ["\n".join(lines) for lines in itertools.permutations(["Heat (1995)", "Up (2009)"], num_items)]
    wanted = sorted(whole(tokenizer, text) for text in [*lists, *(QUESTIONS[q] for q in open_questions)])
    constraint = [*OTHERS, *(-1 - question for question in open_questions)]
    written, begun = [], [[]]
    while begun:
        tokens = begun.pop()
        walk = Walk(asking, num_items, constraint)
        for token in tokens:
            walk.advance(token)
        if tokens[-1:] == [tokenizer.eos_token_id]:
            assert walk.items[0] >= 0 or (-1 - walk.items[0] in open_questions and len(walk.items) == 1)
            assert walk.allowed() == [tokenizer.eos_token_id]  # vLLM may ask for a token after the end
            written.append(tokens)
            continue
        assert walk.count_choices() == len(walk.allowed())
        begun += [[*tokens, token] for token in walk.allowed()]
    assert sorted(written) == wanted


def test_trie_without_open_questions_acts_as_if_it_had_none(
    asking: CatalogTrie, catalog: CatalogTrie, tokenizer: Any
) -> None:
    tokens = whole(tokenizer, "Up (2009)\nAlien (1979)")
    with_questions, without = Walk(asking, 2, [5]), Walk(catalog, 2, [5])
    for token in tokens:
        assert with_questions.allowed() == without.allowed()
        with_questions.advance(token), without.advance(token)
    one, other = (ChoiceReader(trie).read(tokens, [2, 5]) for trie in (asking, catalog))
    assert one.place_F.tolist() == other.place_F.tolist()
    assert asking.longest_list(3) == catalog.longest_list(3)
    assert asking.tokens.tolist() == catalog.tokens.tolist()


def test_the_choice_to_ask_is_read_back(asking: CatalogTrie, tokenizer: Any) -> None:
    tokens = whole(tokenizer, QUESTIONS[0])
    choices = ChoiceReader(asking).read(tokens, [2, -1, -2])
    assert choices.place_F.tolist()[0] == 0  # to ask, not to list
    with pytest.raises(ValueError, match="not allowed"):
        ChoiceReader(asking).read(tokens, [2, -2])  # the question was asked before


def test_a_file_with_questions_is_read_back_and_is_another_file(
    asking: CatalogTrie, catalog: CatalogTrie, matcher: Matcher, tokenizer: Any, tmp_path: Path
) -> None:
    for trie in (asking, catalog):
        save_catalog_trie(tmp_path / "trie.npz", trie)
        assert load_catalog_trie(tmp_path / "trie.npz").questions == trie.questions
    (tmp_path / "catalog.parquet").write_bytes(b"")
    paths = [
        catalog_trie(tmp_path / "catalog.parquet", matcher, tokenizer, "\n", tmp_path, questions=questions)[1]
        for questions in ([], QUESTIONS, QUESTIONS[:1])
    ]
    assert len(set(paths)) == 3


def test_a_title_that_is_a_question_is_refused(tokenizer: Any) -> None:
    catalog = Catalog.from_items([("Which genre?", None), ("Up", None)])
    with refuses("constraint.question-is-item", "'Which genre?'"):
        build_catalog_trie(Matcher(catalog), tokenizer, "\n", questions=QUESTIONS)
