"""The retriever: its parts, fitted on training conversations, and their lists fused into one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from convrec.errors import UserError
from convrec.retrieval.conversations import Conversation
from convrec.retrieval.fusion import DEPTH, Fusion, fuse
from convrec.retrieval.parts import ItemTexts, Neighbours, Ridge, fit_ridge, vectorizer

FEW_ROWS = 100  # of training, up to which a word of one row alone counts
PARTS = ("neighbours", "ridge", "text")
POPULARITY = "popularity"  # what rows want most often; it stands behind what the parts list


@dataclass(frozen=True)
class Choice:
    """neighbours: how many conversations. weights, constant: of the fusion of the parts' lists."""

    neighbours: int = 200
    constant: float = 10.0
    weights: Mapping[str, float] = field(default_factory=lambda: {"neighbours": 1.0, "ridge": 0.25, "text": 0.0})

    def fused(self, lists: Mapping[str, Sequence[int]]) -> list[int]:
        """One list of `Retriever.lists`."""
        weighed = {name: weight for name, weight in self.weights.items() if weight}
        found = fuse([lists[name] for name in weighed], [*weighed.values()], self.constant)
        return [*dict.fromkeys([*found, *lists[POPULARITY]])]


class Retriever:
    def __init__(
        self, fitted: Mapping[str, Any], texts_M: Sequence[str], choice: Choice, fusion: Fusion | None = None
    ) -> None:
        """fitted: as `fit` has it. texts_M: the catalog's words. fusion: with a model's lists, if chosen."""
        self.fusion = fusion
        self.conversation_R, self.wanted_RM, self.choice = fitted["conversation_R"], fitted["wanted_RM"], choice
        self.neighbours, self.ridge = Neighbours(fitted, self.choice.neighbours), Ridge(fitted)
        self.text = ItemTexts(texts_M)
        self.wanted_M = np.asarray(self.wanted_RM.sum(axis=0)).ravel()

    def lists(
        self, asked: Conversation, allowed_M: np.ndarray | None = None, names: Iterable[str] | None = None
    ) -> dict[str, list[int]]:
        """Items of the parts, the DEPTH best of each, and POPULARITY, all that training rows want; rows of the same
        conversation count in none. allowed_M: the items that may be listed. names: of parts; None: those with a
        weight."""
        left_out = np.flatnonzero(self.conversation_R == asked.key) if asked.name else np.empty(0, int)
        wanted_M = self.wanted_M - np.asarray(self.wanted_RM[left_out].sum(axis=0)).ravel()
        allowed = np.ones(len(wanted_M), bool) if allowed_M is None else allowed_M

        def best(scores_M: np.ndarray) -> list[int]:
            items = np.flatnonzero((scores_M > 0) & allowed)
            return items[np.lexsort((items, -wanted_M[items], -scores_M[items]))].tolist()

        found = {POPULARITY: best(wanted_M)}
        weights = self.choice.weights
        for name in [name for name in weights if weights[name]] if names is None else names:
            scores_M = getattr(self, name).scores(asked.text, asked.named, left_out)
            if name != "text":
                scores_M = np.where(wanted_M > 0, scores_M, 0)  # by others: a left-out answer leaves no noise
            found[name] = best(scores_M)[:DEPTH]
        return found

    def rank(self, asked: Conversation, allowed_M: np.ndarray | None = None) -> list[int]:
        """Items, best first: what the parts list, then popular ones."""
        return self.choice.fused(self.lists(asked, allowed_M))


def fit(rows: Iterable[Conversation], count: int, items: int) -> dict[str, Any]:
    """What `count` training rows say, read once, of a catalog of so many items. Raises UserError where they want none
    of them, and where they have no words in common."""
    named, wanted, keys = list[Sequence[int]](), list[Sequence[int]](), list[int]()

    def texts() -> Iterable[str]:
        for row in rows:
            named.append(row.named)
            wanted.append(row.wanted)
            keys.append(row.key)
            yield row.text

    words = vectorizer(2 if count > FEW_ROWS else 1)
    try:
        rows_RV = words.fit_transform(texts()).tocsc()
    except ValueError as error:  # scikit-learn's, of an empty vocabulary
        raise UserError(f"retrieval: training conversations have no words in common ({error}); give more") from None
    named_RM, wanted_RM = table_of(named, items), table_of(wanted, items)
    if not wanted_RM.nnz:
        raise UserError(f"retrieval: no training row of {count} wants an item of the catalog; is it of other data?")
    fitted = {"vectorizer": words, "rows_RV": rows_RV, "wanted_RM": wanted_RM, **fit_ridge(named_RM, wanted_RM)}
    return fitted | {"conversation_R": np.array(keys, np.int64)}


def table_of(rows: Sequence[Sequence[int]], items: int) -> sparse.csr_matrix:
    """1 where a row has the item."""
    ends, flat = np.cumsum([0, *map(len, rows)]), [item for row in rows for item in row]
    return sparse.csr_matrix((np.ones(len(flat), np.float32), flat, ends), shape=(len(rows), items))
