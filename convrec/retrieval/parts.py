"""The three parts of retrieval; each scores all M items of the catalog, with 0 for unknown ones.

neighbours  items relevant in similar conversations: sum of cosines (TF-IDF of words) over the nearest of R training
            rows
ridge       items that go with the named titles: B of min |Y - X B|^2 + PENALTY |B|^2, where rows name X and Y is
            relevant; EASE (Steck, WWW 2019) from named to relevant titles
text        items whose words are in the conversation: cosine of TF-IDF; the only score of items that were never
            relevant

`left_out` are training rows that must not influence a score in any way: those of the queried conversation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

PENALTY = 50.0  # ReDial, NDCG@20: 5 .075, 20 .078, 50 .079, 200 .080, 500 .078
RIDGE_ITEMS = 10_000  # the most often named or relevant items: a matrix of 400 MB; the ridge ignores all others
POSTINGS = 500_000  # of a conversation's words, rarest first; with millions of rows, more common words are ignored


def make_vectorizer(min_texts: int, words: Sequence[str] | None = None) -> Any:
    """Make a TF-IDF vectorizer of words.

    Args:
        min_texts: a word must occur in this many texts.
        words: the vocabulary, if already fitted; the caller then sets idf_.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

    ignored = [*ENGLISH_STOP_WORDS, "user", "system"]  # the speakers of every conversation
    return TfidfVectorizer(min_df=min_texts, sublinear_tf=True, stop_words=ignored, dtype=np.float32, vocabulary=words)


def find_threshold(values: np.ndarray, count: int) -> float:
    """Return the smallest of the `count` largest values.

    Args:
        values: one-dimensional, in any order, none negative.
        count: at least 1.

    Returns:
        The value; 0 if there are no more values than `count`.
    """
    return np.partition(values, -count)[-count] if len(values) > count else 0.0


class Neighbours:
    """Scores items by how often they are relevant in similar conversations.

    Args:
        fitted: from `retriever.fit`.
        count: number of neighbours; ties with the last one count, too.
    """

    def __init__(self, fitted: Mapping[str, Any], count: int) -> None:
        self.vectorizer = fitted["vectorizer"]
        self.rows_RV = fitted["rows_RV"]
        self.wanted_RM = fitted["wanted_RM"]
        self.count = count

    def score_items(self, text: str, named: Sequence[int], left_out: np.ndarray) -> np.ndarray:
        """Score all items for a conversation.

        Args:
            text: the turns.
            named: not used: the words of named titles are in the text.
            left_out: numbers of the training rows that must not count.

        Returns:
            The sums of cosines, (M,); 0 for items that are relevant in no similar conversation.
        """
        query = self.vectorizer.transform([text])
        starts_V = self.rows_RV.indptr
        row_counts = starts_V[query.indices + 1] - starts_V[query.indices]
        rarest_first = np.argsort(row_counts, kind="stable")
        num_words = int(np.searchsorted(np.cumsum(row_counts[rarest_first]), POSTINGS, side="right"))
        words = rarest_first[: max(1, num_words)]
        cosine_R = self.rows_RV[:, query.indices[words]] @ query.data[words]
        cosine_R[left_out] = 0
        nearest = self.find_nearest(cosine_R)
        return cosine_R[nearest] @ self.wanted_RM[nearest]

    def find_nearest(self, cosine_R: np.ndarray) -> np.ndarray:
        """Find the most similar training rows.

        Args:
            cosine_R: cosine of each training row with the conversation.

        Returns:
            The rows with the largest cosines above 0: `count` of them, and ties with the last.
        """
        sample = cosine_R[: len(cosine_R) // 16]  # its threshold is at most that of all rows
        candidates = np.flatnonzero(cosine_R >= max(find_threshold(sample, self.count), 1e-9))
        return candidates[cosine_R[candidates] >= find_threshold(cosine_R[candidates], self.count)]


class Ridge:
    """Scores items that go with the named titles.

    Attributes:
        items_K: the catalog rows of the ridge's items; -1 for an item that the catalog no longer has.
        inverse_KK: (X'X + PENALTY I)^-1.
        weights_KK: B.
    """

    def __init__(self, fitted: Mapping[str, Any]) -> None:
        self.named_RK = fitted["named_RK"]
        self.wanted_RM = fitted["wanted_RM"]
        self.items_K = fitted["items_K"]
        self.inverse_KK = fitted["inverse_KK"]
        self.weights_KK = fitted["weights_KK"]
        self.index_by_item = {int(item): k for k, item in enumerate(self.items_K) if item >= 0}

    def score_items(self, text: str, named: Sequence[int], left_out: np.ndarray) -> np.ndarray:
        """Score all items for a conversation: x B.

        Without the rows X', Y' the scores are x B - h (I - H)^-1 (Y' - X' B), where P is the inverse, h = x P X'^T and
        H = X' P X'^T: the leave-out formula of linear regression.

        Args:
            text: not used: named titles count, not words.
            named: the named items, as their first catalog rows.
            left_out: numbers of the training rows that must not count.

        Returns:
            The scores, (M,), which may be negative; 0 for items outside the ridge, or all 0 if none of its items is
            named.
        """
        scores_M = np.zeros(self.wanted_RM.shape[1])
        columns = [self.index_by_item[item] for item in named if item in self.index_by_item]
        if not columns:
            return scores_M
        scores_K = self.weights_KK[columns].sum(axis=0, dtype=np.float64)
        if len(left_out):
            own_GK = self.named_RK[left_out]
            own_inverse_GK = own_GK @ self.inverse_KK
            rest_GG = np.eye(len(left_out)) - own_inverse_GK @ own_GK.T
            share_G = np.linalg.solve(rest_GG, own_inverse_GK[:, columns].sum(axis=1))
            share_K = share_G @ own_GK
            scores_K += share_K[share_K != 0] @ self.weights_KK[share_K != 0]
            scores_K -= (share_G @ self.wanted_RM[left_out])[self.items_K]
        scores_M[self.items_K[self.items_K >= 0]] += scores_K[self.items_K >= 0]
        return np.round(scores_M, 6)  # all other digits are float32 noise


def fit_ridge(named_RM: sparse.csr_matrix, wanted_RM: sparse.csr_matrix) -> dict[str, Any]:
    """Fit the arrays of a Ridge except for wanted_RM.

    Args:
        named_RM: 1 where a training row names an item.
        wanted_RM: 1 where an item is relevant in a training row.

    Returns:
        items_K, named_RK, weights_KK and inverse_KK of `Ridge`, for the K items that are most often named or relevant,
        at most RIDGE_ITEMS.
    """
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
    """Scores items whose words are in the conversation."""

    def __init__(self, texts_M: Sequence[str]) -> None:
        # one word at least: `Up` and `It` are stop words
        self.vectorizer = make_vectorizer(1).fit([*texts_M, "convrec"])
        self.texts_VM = self.vectorizer.transform(texts_M).T.tocsr()

    def score_items(self, text: str, named: Sequence[int], left_out: np.ndarray) -> np.ndarray:
        """Score all items for a conversation.

        Args:
            text: the turns.
            named: not used.
            left_out: not used: no training row influences these scores.

        Returns:
            The cosines, (M,), from 0 to 1.
        """
        return (self.vectorizer.transform([text]) @ self.texts_VM).toarray().ravel()
