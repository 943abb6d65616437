"""Why an item is in a list: a sentence of the catalog's columns and of counted training rows, true by construction.

It says what is so of the item, not why the model wrote it: that nobody knows.
"""

from collections.abc import Collection, Sequence

from convrec.inference.served_catalog.columns import GENRES
from convrec.inference.served_catalog.mentions import LEAST
from convrec.inference.served_catalog.snapshot import CatalogItem, Snapshot

MOST_GENRES = 3


def sentence(number: int, liked: Collection[int], snapshot: Snapshot) -> str | None:
    """The first of these that is so: others who named a liked item wanted it, it shares genres with one, it is wanted
    more often than nine of ten others; else None. number, liked: of items of the snapshot."""
    item = snapshot.items[number]
    mentions = snapshot.mentions or {}
    others = [snapshot.items[other] for other in liked if other != number]
    named = max(others, key=lambda other: mentions.get((item.line, other.line), 0), default=item)
    if (times := mentions.get((item.line, named.line), 0)) >= LEAST:
        return f"Others who named {named.clean_title} wanted this {_count_times(times)}."
    shared = [(sorted({*_genres(item)} & {*_genres(other)}), other) for other in others]
    genres, alike = max(shared, key=lambda one: len(one[0]), default=([], item))
    if genres:
        return f"{_join(genres[:MOST_GENRES])}, as {alike.clean_title}, which you liked."
    times = snapshot.times(number)
    if times > snapshot.times(snapshot.popular[len(snapshot.popular) // 10]):
        return f"Wanted {_count_times(times)}, more often than nine of ten others."
    return None


def _genres(item: CatalogItem) -> Sequence[str]:
    return item.columns.get(GENRES) or ()


def _count_times(times: int) -> str:
    return "once" if times == 1 else f"{times:,} times"


def _join(words: Sequence[str]) -> str:
    """`Crime, Drama and War`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
