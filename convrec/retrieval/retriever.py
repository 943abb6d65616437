"""The retriever: parts fitted on training conversations, whose lists are fused by weighted reciprocal ranks.

Reciprocal rank fusion: Cormack, Clarke, Büttcher, SIGIR 2009.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from convrec.base.errors import UserError
from convrec.retrieval.conversations import Conversation
from convrec.retrieval.parts import ItemTexts, Neighbours, Ridge, find_threshold, fit_ridge, make_vectorizer

PARTS = ("neighbours", "ridge", "text")
POPULARITY = "popularity"  # the items most often relevant, which come after those of the parts
DEPTH = 100  # items of a list that is fused, except for a model's


def fuse(lists: Sequence[Sequence[int]], weights: Sequence[float], constant: float) -> list[int]:
    """Fuse lists: sort items by the sum over lists of weight / (constant + rank), with ranks from 1.

    Tied items have the order of the first list that has one of them.

    Args:
        lists: items, best first; the lists may have different lengths, and none repeats an item.
        weights: one per list. Lists of weight 0 are ignored.
        constant: of reciprocal rank fusion; the larger it is, the less the first ranks stand out.

    Returns:
        All items of the lists that count, best first.
    """
    scores: dict[int, float] = {}
    for items, weight in zip(lists, weights, strict=True):
        for rank, item in enumerate(items if weight else (), 1):
            scores[item] = scores.get(item, 0.0) + weight / (constant + rank)
    return sorted(scores, key=lambda item: -scores[item])


class Fusion(NamedTuple):
    """The fusion of a model's list with the retrieval's.

    Attributes:
        weight: of the model's list; 1 for this list only, 0 for the retrieval's only.
        constant: see `fuse`.
    """

    weight: float
    constant: float

    def of(self, written: Sequence[int], retrieved: Sequence[int]) -> list[int]:
        """Fuse the model's list and the retrieval's.

        Args:
            written: the model's items, best first.
            retrieved: the retrieval's items, best first. DEPTH of them count, or all if the weight is 0.

        Returns:
            The items of both, best first; those of one list only if the weight is 0 or 1.
        """
        top = retrieved[:DEPTH] if self.weight else retrieved
        return fuse((written, top), (self.weight, 1 - self.weight), self.constant)


@dataclass(frozen=True)
class Choice:
    """The choices on validation.

    Attributes:
        neighbours: the number of similar conversations.
        constant: of the fusion of the parts' lists, see `fuse`.
        weights: of the parts.
    """

    neighbours: int = 200
    constant: float = 10.0
    weights: Mapping[str, float] = field(default_factory=lambda: {"neighbours": 1.0, "ridge": 0.1, "text": 0.0})

    def fused(self, lists: Mapping[str, Sequence[int]]) -> list[int]:
        """Fuse the lists of `Retriever.lists`."""
        weights = {name: weight for name, weight in self.weights.items() if weight}
        fused = fuse([lists[name] for name in weights], [*weights.values()], self.constant)
        return [*dict.fromkeys([*fused, *lists[POPULARITY]])]


class Retriever:
    """Ranks the items of a catalog for a conversation.

    Args:
        fitted: from `fit`.
        texts_M: the words of each item.
        choice: of the parts.
        fusion: with a model's lists; None if not chosen.
        notes: of the folder that it was loaded from.
    """

    def __init__(
        self,
        fitted: Mapping[str, Any],
        texts_M: Sequence[str],
        choice: Choice,
        fusion: Fusion | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        self.conversation_R = fitted["conversation_R"]
        self.wanted_RM = fitted["wanted_RM"]
        self.text_R = fitted["text_R"]
        self.prefix_P = fitted["prefix_P"]
        self.prefix_row_P = fitted["prefix_row_P"]
        self.choice = choice
        self.fusion = fusion
        self.notes = notes or {}
        self.ridge = Ridge(fitted)
        self.neighbours = Neighbours(fitted, choice.neighbours)
        self.text = ItemTexts(texts_M)
        self.wanted_M = np.asarray(self.wanted_RM.sum(axis=0)).ravel()

    def lists(
        self,
        asked: Conversation,
        allowed_M: np.ndarray | None = None,
        names: Iterable[str] | None = None,
        num_popular: int | None = None,
    ) -> dict[str, list[int]]:
        """Return the list of each part, and of POPULARITY.

        Training rows of the same conversation are ignored, and seen items are in no list.

        Args:
            asked: the conversation.
            allowed_M: whether each item may be listed; None for all.
            names: the parts; None for those with a weight.
            num_popular: length of the list of POPULARITY; None for all items that are relevant in training rows.

        Returns:
            Part -> its DEPTH best items; POPULARITY -> the items that are relevant in most training rows.
        """
        left_out = self._find_own_rows(asked)
        wanted_M = self.wanted_M - np.asarray(self.wanted_RM[left_out].sum(axis=0)).ravel()
        allowed_M = np.ones(len(wanted_M), bool) if allowed_M is None else allowed_M.copy()
        allowed_M[[*asked.seen]] = False

        def find_best(scores_M: np.ndarray, count: int) -> list[int]:
            items = np.flatnonzero((scores_M > 0) & allowed_M)
            items = items[scores_M[items] >= find_threshold(scores_M[items], count)]
            return items[np.lexsort((-wanted_M[items], -scores_M[items]))][:count].tolist()

        lists = {POPULARITY: find_best(wanted_M, len(wanted_M) if num_popular is None else num_popular)}
        for name in [name for name in PARTS if self.choice.weights.get(name)] if names is None else names:
            scores_M = getattr(self, name).score_items(asked.text, asked.named, left_out)
            if name != "text":
                # only items relevant in other rows, so that no rounding noise reveals a left-out answer
                scores_M = np.where(wanted_M > 0, scores_M, 0)
            lists[name] = find_best(scores_M, DEPTH)
        return lists

    def _find_own_rows(self, asked: Conversation) -> np.ndarray:
        """Find the training rows of the same conversation: the same name or text, or one text continues the other."""
        if not asked.name:
            return np.empty(0, int)
        *prefixes, whole = asked.compute_text_keys()
        is_own_R = (self.conversation_R == asked.key) | np.isin(self.text_R, [*prefixes, whole])
        is_own_R[self.prefix_row_P[self.prefix_P == whole]] = True
        return np.flatnonzero(is_own_R)

    def rank(self, asked: Conversation, allowed_M: np.ndarray | None = None, count: int | None = None) -> list[int]:
        """Rank items, best first: those of the parts, then popular ones.

        Args:
            asked: the conversation. Seen items are in no list, and its own training rows do not count.
            allowed_M: whether each item may be listed; None for all. It stays as it is.
            count: number of items; None for all that the training rows name.

        Returns:
            The items, as their first catalog rows, without repetitions. Items that no part scores and that are relevant
            in no training row are missing.
        """
        return self.choice.fused(self.lists(asked, allowed_M, num_popular=count))[:count]


def fit(rows: Iterable[Conversation], count: int, items: int) -> dict[str, Any]:
    """Fit the retriever's parts on training rows.

    Args:
        rows: the rows, which are read once.
        count: their number.
        items: M, the number of catalog rows.

    Raises:
        UserError: the rows have no words in common, or no row has a relevant item in the catalog.
    """
    conversations: list[Conversation] = []
    text_keys: list[list[int]] = []

    def iter_texts() -> Iterable[str]:
        for row in rows:
            conversations.append(row._replace(text="", seen=()))
            text_keys.append(row.compute_text_keys())
            yield row.text

    words = make_vectorizer(2 if count > 100 else 1)  # with few rows, words of a single row count, too
    try:
        rows_RV = words.fit_transform(iter_texts()).tocsc()
    except ValueError as error:  # scikit-learn's error for an empty vocabulary
        raise UserError(
            "retrieval.no-words",
            f"retrieval: the training conversations have no words in common ({error}). Add conversations.",
        ) from None
    named_RM = make_multi_hot((row.named for row in conversations), items)
    wanted_RM = make_multi_hot((row.wanted for row in conversations), items)
    if not wanted_RM.nnz:
        raise UserError(
            "retrieval.no-relevant-items",
            f"retrieval: none of {count} training rows has a relevant item in the catalog. Check that both belong to "
            "the same data set.",
        )
    num_prefixes_R = [len(keys) - 1 for keys in text_keys]
    fitted = {
        "vectorizer": words,
        "rows_RV": rows_RV,
        "wanted_RM": wanted_RM,
        "conversation_R": np.array([row.key for row in conversations], np.int64),
        "text_R": np.array([keys[-1] for keys in text_keys], np.int64),
        "prefix_P": np.array([key for keys in text_keys for key in keys[:-1]], np.int64),
        "prefix_row_P": np.repeat(np.arange(len(conversations)), num_prefixes_R),
    }
    return fitted | fit_ridge(named_RM, wanted_RM)


def make_multi_hot(rows: Iterable[Iterable[int]], items: int, dtype: type = np.float32) -> sparse.csr_matrix:
    """Return a matrix with 1 for each item of a row.

    Args:
        rows: the items of each row.
        items: number of columns.
        dtype: of the matrix.
    """
    lists = [*map(list, rows)]
    ends = np.cumsum([0, *map(len, lists)])
    flat = [*chain.from_iterable(lists)]
    return sparse.csr_matrix((np.ones(len(flat), dtype), flat, ends), shape=(len(lists), items))
