"""What retrieval knows, in three parts; each has a score for every item of the catalog, M of them, 0 for unknown ones.

neighbours  what similar conversations wanted: the sum of cosines (TF-IDF of words) over the nearest of R training rows
ridge       what goes with the titles named: B of min |Y - X B|^2 + PENALTY |B|^2 where rows name X and want Y. It is
            EASE (Steck, WWW 2019) from titles named to titles wanted
text        items whose own words the conversation has: cosine of TF-IDF. What nobody wanted yet has no other score

`left_out` are training rows that have no part in a score, exactly: those of the conversation that is asked about.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

PENALTY = 50.0  # ReDial, NDCG@20: 5 .075, 20 .078, 50 .079, 200 .080, 500 .078
RIDGE_ITEMS = 10_000  # most often named or wanted: a matrix of 400 MB; of others the ridge knows nothing
POSTINGS = 500_000  # of a conversation's words, the rarest first; with millions of rows commoner words do not count


def vectorizer(rare: int, words: Sequence[str] | None = None) -> Any:
    """TF-IDF of the words that are in `rare` texts at least; ready where words are given, and idf_ is set."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

    ignored = [*ENGLISH_STOP_WORDS, "user", "system"]  # the speakers of every conversation
    return TfidfVectorizer(min_df=rare, sublinear_tf=True, stop_words=ignored, dtype=np.float32, vocabulary=words)


def least(values: np.ndarray, count: int) -> float:
    """Of the `count` largest values; 0 of no more."""
    return np.partition(values, -count)[-count] if len(values) > count else 0.0


class Neighbours:
    def __init__(self, fitted: Mapping[str, Any], count: int) -> None:
        """count: how many there are, and all that are as near as the last of them."""
        self.vectorizer = fitted["vectorizer"]
        self.rows_RV = fitted["rows_RV"]
        self.wanted_RM = fitted["wanted_RM"]
        self.count = count

    def scores(self, text: str, named: Sequence[int], left_out: np.ndarray) -> np.ndarray:
        said = self.vectorizer.transform([text])
        starts_V = self.rows_RV.indptr
        row_counts = starts_V[said.indices + 1] - starts_V[said.indices]
        rarest = np.argsort(row_counts, kind="stable")
        kept = rarest[: max(1, int(np.searchsorted(np.cumsum(row_counts[rarest]), POSTINGS, side="right")))]
        cosine_R = self.rows_RV[:, said.indices[kept]] @ said.data[kept]
        cosine_R[left_out] = 0
        nearest = self.nearest(cosine_R)
        return cosine_R[nearest] @ self.wanted_RM[nearest]

    def nearest(self, cosine_R: np.ndarray) -> np.ndarray:
        some = cosine_R[: len(cosine_R) // 16]  # its bound is no more than that of all
        near = np.flatnonzero(cosine_R >= max(least(some, self.count), 1e-9))
        return near[cosine_R[near] >= least(cosine_R[near], self.count)]


class Ridge:
    def __init__(self, fitted: Mapping[str, Any]) -> None:
        """items_K: catalog rows; -1: the catalog has it no more. inverse: (X'X + PENALTY I)^-1. weights: B."""
        self.named_RK = fitted["named_RK"]
        self.wanted_RM = fitted["wanted_RM"]
        self.items_K = fitted["items_K"]
        self.inverse_KK = fitted["inverse_KK"]
        self.weights_KK = fitted["weights_KK"]
        self.index_by_item = {int(item): k for k, item in enumerate(self.items_K) if item >= 0}

    def scores(self, text: str, named: Sequence[int], left_out: np.ndarray) -> np.ndarray:
        """x B. Without the rows X', Y' it is x B - h (I - H)^-1 (Y' - X' B), where P is the inverse, h = x P X'^T and
        H = X' P X'^T: leave-out of linear regression."""
        scores_M = np.zeros(self.wanted_RM.shape[1])
        known = [self.index_by_item[item] for item in named if item in self.index_by_item]
        if not known:
            return scores_M
        of_items_K = self.weights_KK[known].sum(axis=0, dtype=np.float64)
        if len(left_out):
            own_GK = self.named_RK[left_out]
            own_inverse_GK = own_GK @ self.inverse_KK
            rest_GG = np.eye(len(left_out)) - own_inverse_GK @ own_GK.T
            share_G = np.linalg.solve(rest_GG, own_inverse_GK[:, known].sum(axis=1))
            share_K = share_G @ own_GK
            of_items_K += share_K[share_K != 0] @ self.weights_KK[share_K != 0]
            of_items_K -= (share_G @ self.wanted_RM[left_out])[self.items_K]
        scores_M[self.items_K[self.items_K >= 0]] += of_items_K[self.items_K >= 0]
        return np.round(scores_M, 6)  # further digits are the noise of float32


def fit_ridge(named_RM: sparse.csr_matrix, wanted_RM: sparse.csr_matrix) -> dict[str, Any]:
    """What a Ridge is made of, but for wanted_RM."""
    times_M = np.asarray((named_RM + wanted_RM).sum(axis=0)).ravel()
    most = np.argsort(-times_M, kind="stable")[:RIDGE_ITEMS]
    items_K = np.sort(most[times_M[most] > 0])
    named_RK = named_RM[:, items_K].astype(np.float64)
    together_KK = (named_RK.T @ named_RK).toarray()
    inverse_KK = np.linalg.inv(together_KK + PENALTY * np.eye(len(items_K)))
    weights_KK = (wanted_RM[:, items_K].T @ named_RK @ inverse_KK).T
    return {
        "items_K": items_K,
        "named_RK": named_RK.astype(np.float32),
        "weights_KK": np.ascontiguousarray(weights_KK, np.float32),
        "inverse_KK": inverse_KK.astype(np.float32),
    }


class ItemTexts:
    def __init__(self, texts_M: Sequence[str]) -> None:
        self.vectorizer = vectorizer(1).fit([*texts_M, "convrec"])  # a word at least: `Up` and `It` are stop words
        self.texts_VM = self.vectorizer.transform(texts_M).T.tocsr()

    def scores(self, text: str, named: Sequence[int], left_out: np.ndarray) -> np.ndarray:
        return (self.vectorizer.transform([text]) @ self.texts_VM).toarray().ravel()
