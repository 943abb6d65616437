"""Data that benchmarks generate: catalogs, lists, conversations, a tokenizer, a trie.

The same arguments give the same data.
"""

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convrec.features.constrained.catalog_trie import CatalogTrie, build_catalog_trie
from convrec.features.constrained.walk import Walk
from convrec.retrieval.conversations import Conversation
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.forms import fold
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher

LINES = 20  # of a list
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = 200_000  # words of conversations
BLOCK = 5000
ROWS_OF_A_CONVERSATION = 3


# ---- titles and lists


def generate_catalog(size: int, rng: random.Random) -> Catalog:
    """Return `size` different items: titles of one to four made-up words over 70 years, more of them recent."""
    syllables = [a + b for a in "bcdfglmnprstvw" for b in "aeiou"] + ["an", "er", "in", "on", "st", "th"]
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 4))).title() for _ in range(max(2000, size // 2))]
    items: dict[tuple[str, int], None] = {}
    while len(items) < size:
        title = " ".join(rng.choices(words, k=rng.randint(1, 4)))
        items[title, 2023 - int(70 * rng.random() ** 2)] = None
    return Catalog.from_items(list(items))


def list_dated_items(catalog: Catalog) -> list[tuple[str, int]]:
    """Return the titles and years of the items that have a year."""
    return [(title, year) for title, year in zip(catalog.titles, catalog.years, strict=True) if year is not None]


def make_responses(items: list, foreign: list, rng: random.Random, count: int) -> list[str]:
    """Return lists of LINES lines: 70 % catalog items, 10 % with a wrong year, 10 % misspelt, 10 % foreign titles.

    Popular items come back as they do in training: a third of the draws are from 300 items.
    """
    popular = items[:300]

    def make_line() -> str:
        kind = rng.random()
        title, year = rng.choice(popular if rng.random() < 1 / 3 else items)
        if kind < 0.1:
            year += rng.choice((-1, 1)) * rng.randint(3, 9)
        elif kind < 0.2:
            title = misspell(title, rng.choice((1, 2)), rng)
        elif kind < 0.3:
            title, year = rng.choice(foreign)
        return format_item(title, year)

    return ["\n".join(make_line() for _ in range(LINES)) for _ in range(count)]


def misspell(title: str, typos: int, rng: random.Random) -> str:
    """Replace, drop, add or swap letters."""
    for _ in range(typos):
        place = rng.randrange(len(title))
        letter = rng.choice(LETTERS)
        title = rng.choice(
            (
                title[:place] + letter + title[place + 1 :],
                title[:place] + title[place + 1 :] or title,
                title[:place] + letter + title[place:],
                title[:place] + title[place + 1 : place + 2] + title[place] + title[place + 2 :],
            )
        )
    return title


def draw_misspelt(
    items: Sequence[tuple[str, int]], typos: int, rng: random.Random, count: int
) -> list[tuple[str, str, int]]:
    """Draw misspelt titles.

    Args:
        items: titles and years.
        typos: letters that differ.
        rng: draws.
        count: how many.

    Returns:
        The misspelt title, which is another one also for matching, the title, the year.
    """
    drawn: list[tuple[str, str, int]] = []
    while len(drawn) < count:
        title, year = rng.choice(items)
        written = misspell(title, typos, rng)
        if fold(written) != fold(title):
            drawn.append((written, title, year))
    return drawn


# ---- conversations


def make_word(number: int) -> str:
    """Return the n-th made-up word: syllables as digits, `ba` and two at least, so that none is a stop word."""
    syllables = [first + second for first in "bcdfghklmnprstvw" for second in "aeiou"]
    text = "ba"
    while number:
        number, digit = divmod(number, len(syllables))
        text += syllables[digit]
    return text


def iter_conversations(rows: int, items: int, words: int, rng: np.random.Generator) -> Iterator[Conversation]:
    """Yield conversations whose words and items are drawn by Zipf's law.

    ROWS_OF_A_CONVERSATION in a row have one name; each names up to four items and has one to three relevant ones.
    """
    vocabulary = np.array([make_word(n) for n in range(1, VOCABULARY + 1)])
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        words_drawn = draw_zipf(rng, VOCABULARY, (size, words))
        items_drawn = draw_zipf(rng, items, (size, 7))
        num_named = rng.integers(0, 5, size)
        num_relevant = rng.integers(1, 4, size)
        for n, text in enumerate(vocabulary[words_drawn]):
            name = f"c{(start + n) // ROWS_OF_A_CONVERSATION}"
            drawn = items_drawn[n].tolist()
            named = sorted({*drawn[: num_named[n]]})
            relevant = sorted({*drawn[4 : 4 + num_relevant[n]]})
            yield Conversation(" ".join(text), named, name, relevant)


def draw_zipf(rng: np.random.Generator, count: int, shape: tuple[int, int], first: int = 10) -> np.ndarray:
    """Draw numbers below `count`, n with a share of 1 / (n + first)."""
    share = np.cumsum(1 / np.arange(first, count + first))
    return np.searchsorted(share / share[-1], rng.random(shape))


# ---- tokenizers and tries


def make_tekken() -> Any:
    """Return Mistral's tekken of 2024-09 as a fast tokenizer, with its 150,000 tokens; mistral_common ships it."""
    import mistral_common
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import MistralConverter

    shipped = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    content = json.loads(shipped.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tekken.json"
        file.write_text(json.dumps(content | {"special_tokens": []}), encoding="utf-8")
        converted = MistralConverter(vocab_file=str(file)).converted()
    return PreTrainedTokenizerFast(tokenizer_object=converted, eos_token="</s>")


def make_catalog_trie(
    catalog: str | None, tokenizer: str | None, size: int, rng: random.Random
) -> tuple[Any, Catalog, CatalogTrie]:
    """Build the trie of a catalog's lines.

    Args:
        catalog: its file; None generates `size` items.
        tokenizer: a Hugging Face folder; None is `make_tekken`.
        size: of a generated catalog.
        rng: of a generated catalog.

    Returns:
        The tokenizer, the catalog, the trie.
    """
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer) if tokenizer else make_tekken()
    items = load_catalog(catalog) if catalog else generate_catalog(size, rng)
    matcher = Matcher(items, "fuzzy" if catalog else "exact")
    return loaded, items, build_catalog_trie(matcher, loaded, "\n")


def sample_list(walk: Walk, rng: random.Random) -> tuple[list[int], list[list[int]]]:
    """Write a constrained list whose allowed tokens are equally likely.

    Returns:
        Its tokens, and the allowed tokens wherever there was a choice.
    """
    tokens: list[int] = []
    choices: list[list[int]] = []
    while len(walk.items) < walk.num_items:
        allowed = walk.allowed()
        if len(allowed) > 1:
            choices.append(allowed)
        tokens.append(rng.choice(allowed))
        walk.advance(tokens[-1])
    return tokens, choices
