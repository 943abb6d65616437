"""A teacher without a language model: it ranks catalog items by what was recommended in similar training conversations,
together with the titles named, and at all. It has read the training conversations and no others, and never the one it
answers. The studies on the reduced ReDial were made with it; the program's own is convrec/retrieval.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from scipy import sparse

from convrec.base.errors import UserError
from convrec.base.progress import Progress
from convrec.data.schema import Pair, conversation_text, get_group_id, get_truth
from convrec.titles.item import NO_YEAR, format_item

NEIGHBOURS = 50
BLOCK_BYTES = 1 << 26  # of cosines with all training rows
SHRINKAGE = 5.0  # conversations that a title's co-occurrences are divided by beside its own: rare titles say little
# weights of the three parts, each scaled to a largest value of 1 in its row
SIMILAR, TOGETHER, POPULAR = 1.0, 0.7, 0.5
_WORD = re.compile(r"[a-z']{2,}")


class Cooccurrence:
    """Counts, over C training conversations, of T titles named (or recommended) and M catalog items recommended."""

    def __init__(self, rows: list[dict], catalog: Sequence[Pair]) -> None:
        names = list(dict.fromkeys(get_group_id(row) for row in rows))
        self.conversations = {name: c for c, name in enumerate(names)}
        self.conversation_R = conversation_R = np.array([self.conversations[get_group_id(row)] for row in rows])
        named = [set(row["seen_titles"]) | {title for title, _ in get_truth(row)} for row in rows]
        self.titles = {title: t for t, title in enumerate(sorted(set().union(*named)))}
        entries = [
            (c, self.titles[title])
            for c, titles_of_row in zip(conversation_R, named, strict=True)
            for title in titles_of_row
        ]
        self.named_CT = _ones(entries, (len(names), len(self.titles)))
        items = [(conversation_R[r], m) for r, m in _truth_entries(rows, catalog)]
        self.items_CM = _ones(items, (len(names), len(catalog)))
        self.together_TM = (self.named_CT.T @ self.items_CM).tocsr()
        self.named_T = np.asarray(self.named_CT.sum(axis=0)).ravel()
        self.items_M = np.asarray(self.items_CM.sum(axis=0)).ravel()

    def own_items(self, row: dict) -> np.ndarray:
        """Return what the row's own conversation adds to the counts, (M,); zeros for one that was not read."""
        conversation = self.conversations.get(get_group_id(row))
        return (
            np.zeros(self.items_CM.shape[1]) if conversation is None else self.items_CM[conversation].toarray().ravel()
        )

    def mentions(self, row: dict) -> np.ndarray:
        """Return the number of other conversations with each item, (M,)."""
        return self.items_M - self.own_items(row)

    def together(self, row: dict) -> np.ndarray:
        """Score items by the titles named in a row.

        Returns:
            (M,) sum over the titles of (other conversations with title and item) / (other ones with the title +
            SHRINKAGE).
        """
        together_M = np.zeros(self.items_CM.shape[1])
        for counts_M, conversations in self._by_title(row):
            together_M += counts_M / (conversations + SHRINKAGE)
        return together_M

    def pairs(self, row: dict) -> tuple[np.ndarray, float]:
        """Count pairs of another conversation and a title named in the row.

        Returns:
            (M,) the pairs in which the title is named and the item recommended, and the number of all pairs, whatever
            is recommended.
        """
        counts_M, conversations = np.zeros(self.items_CM.shape[1]), 0.0
        for title_counts_M, title_conversations in self._by_title(row):
            counts_M += title_counts_M
            conversations += title_conversations
        return counts_M, conversations

    def _by_title(self, row: dict) -> Iterator[tuple[np.ndarray, float]]:
        """For each title named that was met before: conversations with it and each item, conversations with it."""
        conversation, items_own_M = self.conversations.get(get_group_id(row)), self.own_items(row)
        for title in row["seen_titles"]:
            if (t := self.titles.get(title)) is not None:
                named_own = 0.0 if conversation is None else self.named_CT[conversation, t]
                yield self.together_TM[t].toarray().ravel() - named_own * items_own_M, self.named_T[t] - named_own


class RetrievalTeacher:
    """Ranks the M catalog items for a conversation from R training rows; see the module's docstring.

    score = SIMILAR * sum over the NEIGHBOURS most similar rows of cosine * [item is ground truth]
          + TOGETHER * sum over titles named of (conversations with title and item) / (those with title + SHRINKAGE)
          + POPULAR * log(1 + conversations with item),
    each part divided by its largest value; all counts leave out the conversation that is asked about.
    """

    def __init__(self, rows: list[dict], catalog: Sequence[Pair]) -> None:
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

        self.catalog = list(catalog)
        self.stop_words = ENGLISH_STOP_WORDS
        self.vectorizer = TfidfVectorizer(analyzer=self._features, min_df=2, sublinear_tf=True)
        try:
            self.features_FR = self.vectorizer.fit_transform(rows).T.tocsr()
        except ValueError as error:  # scikit-learn's, where min_df leaves nothing
            raise UserError(
                "teacher.nothing-in-common",
                f"the retrieval teacher learns from words and titles that training rows share, and these {len(rows)} "
                f"rows share none ({error}). Give it more rows, or use a language model (--teacher llm).",
            ) from None
        self.truth_RM = _ones(_truth_entries(rows, self.catalog), (len(rows), len(self.catalog)))
        self.cooccurrence = Cooccurrence(rows, self.catalog)

    def _features(self, row: dict) -> list[str]:
        titles = row["seen_titles"]
        text = conversation_text(row)
        for title in titles:
            text = text.replace(title, " ")
        words = [word for word in _WORD.findall(text.lower()) if word not in self.stop_words and word != "user"]
        return words + [f"title: {title}" for title in titles for _ in range(2)]

    def scores(self, rows: list[dict]) -> np.ndarray:
        """Score items for rows.

        Returns:
            (rows, M); -inf for titles seen in the conversation.
        """
        scores_BM = np.empty((len(rows), len(self.catalog)))
        for b, (row, (nearest, similar)) in enumerate(zip(rows, self._neighbours(rows), strict=True)):
            similar_M = similar @ self.truth_RM[nearest]
            together_M = self.cooccurrence.together(row)
            popular_M = np.log1p(self.cooccurrence.mentions(row))
            parts = ((SIMILAR, similar_M), (TOGETHER, together_M), (POPULAR, popular_M))
            scores_BM[b] = sum(weight * part / max(part.max(), 1e-9) for weight, part in parts)
            seen = set(row["seen_titles"])
            scores_BM[b, [title in seen for title, _ in self.catalog]] = -np.inf
        return scores_BM

    def _neighbours(self, rows: list[dict]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each row, the NEIGHBOURS most similar rows of other conversations, best first, ties in the rows' order,
        and their cosines; fewer where not so many have anything in common with it."""
        conversations, conversation_R = self.cooccurrence.conversations, self.cooccurrence.conversation_R
        size = max(1, BLOCK_BYTES // (12 * len(conversation_R)))  # a cosine and its index, at most one a row
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            similar_BR = self.vectorizer.transform(block) @ self.features_FR
            for row, (low, high) in zip(block, pairwise(similar_BR.indptr), strict=True):
                indices, similar = similar_BR.indices[low:high], similar_BR.data[low:high]
                other = conversation_R[indices] != conversations.get(get_group_id(row), -1)
                yield _highest(indices[other], similar[other], NEIGHBOURS)

    def lists(self, rows: list[dict], num_items: int, label: str) -> list[list[Pair]]:
        """List unseen catalog items for each row, best first; ties in catalog order.

        Args:
            rows: the rows.
            num_items: length of a list.
            label: of the progress bar.
        """
        result = []
        with Progress(total=len(rows), desc=label, unit="row") as bar:
            for start in range(0, len(rows), 256):
                batch = rows[start : start + 256]
                for order in np.argsort(-self.scores(batch), axis=1, kind="stable"):
                    result.append([self.catalog[m] for m in order[:num_items]])
                bar.update(len(batch))
        return result


def _highest(indices: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` indices with the highest values, best first and the lower one on a tie, and these values."""
    if len(values) > count:  # a sort of them all is what takes the time
        kept = values >= np.partition(values, -count)[-count]
        indices, values = indices[kept], values[kept]
    order = np.lexsort((indices, -values))[:count]
    return indices[order], values[order]


def _truth_entries(rows: list[dict], catalog: Sequence[Pair]) -> list[tuple[int, int]]:
    """(row, catalog item) of every ground truth that the catalog holds."""
    item_of = {pair: m for m, pair in enumerate(catalog)}
    return [(r, item_of[pair]) for r, row in enumerate(rows) for pair in set(get_truth(row)) if pair in item_of]


def _ones(entries: Iterable[tuple[int, int]], shape: tuple[int, int]) -> sparse.csr_matrix:
    """1 at each of the entries, however often it is there."""
    indices = sorted(set(entries))
    rows, columns = [row for row, _ in indices], [column for _, column in indices]
    return sparse.csr_matrix((np.ones(len(indices)), (rows, columns)), shape=shape)


def list_text(items: Iterable[Pair]) -> str:
    """Format a list as a demonstration."""
    return "\n".join(format_item(title, int(year or NO_YEAR)) for title, year in items)
