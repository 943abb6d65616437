"""A sentence about an item, from the catalog's columns and counts of training rows, so that it is always true.

It states a fact about the item, not why the model chose it, which nobody knows.
"""

from collections.abc import Collection, Sequence

from convrec.inference.served_catalog.columns import GENRES
from convrec.inference.served_catalog.mentions import MIN_PAIR_MENTIONS
from convrec.inference.served_catalog.snapshot import CatalogItem, Snapshot

MAX_GENRES = 3


def explain_item(number: int, liked: Collection[int], snapshot: Snapshot) -> str | None:
    """Return the first of three sentences that is true of an item, or None.

    Users who named a liked item wanted it; it shares genres with a liked item; it is wanted more often than nine of ten
    other items.

    Args:
        number: of the item.
        liked: numbers of the items that the user liked.
        snapshot: the catalog.
    """
    item = snapshot.items[number]
    mentions = snapshot.mentions or {}
    others = [snapshot.items[other] for other in liked if other != number]
    best_pair = max(others, key=lambda other: mentions.get((item.line, other.line), 0), default=item)
    if (times := mentions.get((item.line, best_pair.line), 0)) >= MIN_PAIR_MENTIONS:
        return f"Others who named {best_pair.clean_title} wanted this {_format_count(times)}."
    shared = [(sorted({*_get_genres(item)} & {*_get_genres(other)}), other) for other in others]
    genres, similar = max(shared, key=lambda pair: len(pair[0]), default=([], item))
    if genres:
        return f"{_join_words(genres[:MAX_GENRES])}, like {similar.clean_title}, which you liked."
    times = snapshot.count_mentions(number)
    if times > snapshot.count_mentions(int(snapshot.popular_M[len(snapshot.items) // 10])):
        return f"Wanted {_format_count(times)}, more often than nine of ten others."
    return None


def _get_genres(item: CatalogItem) -> Sequence[str]:
    return item.columns.get(GENRES) or ()


def _format_count(times: int) -> str:
    return "once" if times == 1 else f"{times:,} times"


def _join_words(words: Sequence[str]) -> str:
    """Join words: `Crime, Drama and War`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
