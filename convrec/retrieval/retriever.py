"""The retriever: its parts, fitted on training conversations, and lists made into one by weighted reciprocal ranks
(Cormack, Clarke, Büttcher, SIGIR 2009)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from convrec.base.errors import UserError
from convrec.retrieval.conversations import Conversation
from convrec.retrieval.parts import ItemTexts, Neighbours, Ridge, fit_ridge, least, vectorizer

PARTS = ("neighbours", "ridge", "text")
POPULARITY = "popularity"  # what rows want most often; it stands behind what the parts list
DEPTH = 100  # of a list that is fused, a model's excepted


def fuse(lists: Sequence[Sequence[int]], weights: Sequence[float], constant: float) -> list[int]:
    """Items by the sum over lists of weight / (constant + rank), ranks from 1; on a tie as they stand in the first list
    that has one of them. A list of weight 0 is not there."""
    scores: dict[int, float] = {}
    for items, weight in zip(lists, weights, strict=True):
        for rank, item in enumerate(items if weight else (), 1):
            scores[item] = scores.get(item, 0.0) + weight / (constant + rank)
    return sorted(scores, key=lambda item: -scores[item])


class Fusion(NamedTuple):
    """Of a model's list and the retrieval's. weight: of the model's; 1: it alone, 0: the retrieval's alone."""

    weight: float
    constant: float

    def of(self, written: Sequence[int], retrieved: Sequence[int]) -> list[int]:
        behind = retrieved[:DEPTH] if self.weight else retrieved
        return fuse((written, behind), (self.weight, 1 - self.weight), self.constant)


@dataclass(frozen=True)
class Choice:
    """neighbours: how many conversations. weights, constant: of the fusion of the parts' lists."""

    neighbours: int = 200
    constant: float = 10.0
    weights: Mapping[str, float] = field(default_factory=lambda: {"neighbours": 1.0, "ridge": 0.1, "text": 0.0})

    def fused(self, lists: Mapping[str, Sequence[int]]) -> list[int]:
        """One list of `Retriever.lists`."""
        weighed = {name: weight for name, weight in self.weights.items() if weight}
        fused = fuse([lists[name] for name in weighed], [*weighed.values()], self.constant)
        return [*dict.fromkeys([*fused, *lists[POPULARITY]])]


class Retriever:
    def __init__(
        self, fitted: Mapping[str, Any], texts_M: Sequence[str], choice: Choice, fusion: Fusion | None = None
    ) -> None:
        """fitted: as `fit` has it. texts_M: the catalog's words. fusion: with a model's lists, if chosen."""
        self.conversation_R = fitted["conversation_R"]
        self.wanted_RM = fitted["wanted_RM"]
        self.text_R = fitted["text_R"]
        self.prefix_P = fitted["prefix_P"]
        self.prefix_row_P = fitted["prefix_row_P"]
        self.choice = choice
        self.fusion = fusion
        self.ridge = Ridge(fitted)
        self.neighbours = Neighbours(fitted, choice.neighbours)
        self.text = ItemTexts(texts_M)
        self.wanted_M = np.asarray(self.wanted_RM.sum(axis=0)).ravel()

    def lists(
        self, asked: Conversation, allowed_M: np.ndarray | None = None, names: Iterable[str] | None = None
    ) -> dict[str, list[int]]:
        """Items of the parts, the DEPTH best of each, and POPULARITY, all that training rows want; rows of the same
        conversation count in none, and what it has seen is in none. allowed_M: the items that may be listed. names: of
        parts; None: those with a weight."""
        left_out = self._own_rows(asked)
        wanted_M = self.wanted_M - np.asarray(self.wanted_RM[left_out].sum(axis=0)).ravel()
        allowed_M = np.ones(len(wanted_M), bool) if allowed_M is None else allowed_M.copy()
        allowed_M[[*asked.seen]] = False

        def best(scores_M: np.ndarray, most: int) -> list[int]:
            items = np.flatnonzero((scores_M > 0) & allowed_M)
            items = items[scores_M[items] >= least(scores_M[items], most)]
            return items[np.lexsort((-wanted_M[items], -scores_M[items]))][:most].tolist()

        found = {POPULARITY: best(wanted_M, len(wanted_M))}
        for name in [name for name in PARTS if self.choice.weights.get(name)] if names is None else names:
            scores_M = getattr(self, name).scores(asked.text, asked.named, left_out)
            if name != "text":
                scores_M = np.where(wanted_M > 0, scores_M, 0)  # by others: a left-out answer leaves no noise
            found[name] = best(scores_M, DEPTH)
        return found

    def _own_rows(self, asked: Conversation) -> np.ndarray:
        """Training rows of the same conversation: by its name, by its text, or where one text goes on with the
        other."""
        if not asked.name:
            return np.empty(0, int)
        *prefixes, whole = asked.text_keys()
        is_own_R = (self.conversation_R == asked.key) | np.isin(self.text_R, [*prefixes, whole])
        is_own_R[self.prefix_row_P[self.prefix_P == whole]] = True
        return np.flatnonzero(is_own_R)

    def rank(self, asked: Conversation, allowed_M: np.ndarray | None = None) -> list[int]:
        """Items, best first: what the parts list, then popular ones."""
        return self.choice.fused(self.lists(asked, allowed_M))


def fit(rows: Iterable[Conversation], count: int, items: int) -> dict[str, Any]:
    """What `count` training rows say, read once, of a catalog of so many items. Raises UserError where they want none
    of them, and where they have no words in common."""
    kept: list[Conversation] = []
    text_keys: list[list[int]] = []

    def texts() -> Iterable[str]:
        for row in rows:
            kept.append(row._replace(text="", seen=()))
            text_keys.append(row.text_keys())
            yield row.text

    words = vectorizer(2 if count > 100 else 1)  # of few rows a word of one alone counts
    try:
        rows_RV = words.fit_transform(texts()).tocsc()
    except ValueError as error:  # scikit-learn's, of an empty vocabulary
        raise UserError(f"retrieval: training conversations have no words in common ({error}); give more") from None
    named_RM, wanted_RM = (
        make_multi_hot(of, items) for of in ((row.named for row in kept), (row.wanted for row in kept))
    )
    if not wanted_RM.nnz:
        raise UserError(f"retrieval: no training row of {count} wants an item of the catalog; is it of other data?")
    num_prefixes_R = [len(keys) - 1 for keys in text_keys]
    fitted = {
        "vectorizer": words,
        "rows_RV": rows_RV,
        "wanted_RM": wanted_RM,
        "conversation_R": np.array([row.key for row in kept], np.int64),
        "text_R": np.array([keys[-1] for keys in text_keys], np.int64),
        "prefix_P": np.array([key for keys in text_keys for key in keys[:-1]], np.int64),
        "prefix_row_P": np.repeat(np.arange(len(kept)), num_prefixes_R),
    }
    return fitted | fit_ridge(named_RM, wanted_RM)


def make_multi_hot(rows: Iterable[Iterable[int]], items: int, dtype: type = np.float32) -> sparse.csr_matrix:
    """1 where a row has the item."""
    lists = [*map(list, rows)]
    ends = np.cumsum([0, *map(len, lists)])
    flat = [*chain.from_iterable(lists)]
    return sparse.csr_matrix((np.ones(len(flat), dtype), flat, ends), shape=(len(lists), items))
