"""Texts -> unit vectors, for cosine similarities.

tfidf-svd                     TF-IDF of words and pairs of words with truncated SVD, fitted on the texts at hand: needs no
                              download and knows no more than which words occur together. For runs without a model.
sentence-transformers:MODEL   a sentence-transformers model by name or folder; needs the extra `embeddings`.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from convrec.errors import UserError

TFIDF_SVD = "tfidf-svd"
SENTENCE_TRANSFORMERS = "sentence-transformers:"
MAX_FEATURES = 50_000


class Embedder(Protocol):
    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(n, D) float32; every row has norm 1, or 0 where the text has nothing that is known."""
        ...


def check_embedding(name: str) -> None:
    """Raise UserError for a name that is none, or whose library is not installed."""
    if name == TFIDF_SVD:
        return
    model = name.removeprefix(SENTENCE_TRANSFORMERS)
    if model == name or not model:
        raise UserError(f"--embedding {name}: give {TFIDF_SVD} or {SENTENCE_TRANSFORMERS}MODEL")
    _sentence_transformer_class()


def make_embedder(name: str, texts: Sequence[str], dimensions: int, seed: int) -> Embedder:
    """`texts`, `dimensions` and `seed` are for tfidf-svd: what it is fitted on, and how."""
    check_embedding(name)
    if name == TFIDF_SVD:
        return TfidfSvd(texts, dimensions, seed)
    return SentenceTransformerEmbedder(name.removeprefix(SENTENCE_TRANSFORMERS))


class TfidfSvd:
    def __init__(self, texts: Sequence[str], dimensions: int, seed: int) -> None:
        """Fit on `texts`; at most `dimensions` of them are kept, fewer where there are fewer words or texts."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.vectorizer = TfidfVectorizer(
            stop_words="english", ngram_range=(1, 2), sublinear_tf=True, max_features=MAX_FEATURES, dtype=np.float32
        )
        try:
            words = self.vectorizer.fit_transform(texts)
        except ValueError as error:  # scikit-learn's "empty vocabulary"
            raise UserError(f"--embedding {TFIDF_SVD}: the texts have no words ({error})") from None
        kept = min(dimensions, *(size - 1 for size in words.shape))
        self.svd = TruncatedSVD(kept, random_state=seed).fit(words) if kept > 0 else None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        words = self.vectorizer.transform(texts)
        return unit_rows(words.toarray() if self.svd is None else self.svd.transform(words))


class SentenceTransformerEmbedder:
    def __init__(self, model: str) -> None:
        try:
            self.model = _sentence_transformer_class()(model)
        except (OSError, ValueError) as error:
            raise UserError(f"--embedding {SENTENCE_TRANSFORMERS}{model}: the model does not load ({error})") from error

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return unit_rows(self.model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True))


def _sentence_transformer_class() -> type:
    try:
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UserError(
            f"--embedding {SENTENCE_TRANSFORMERS}...: sentence-transformers is not installed; install the extra "
            f'`embeddings` (pip install -e ".[embeddings]"), or use --embedding {TFIDF_SVD}'
        ) from None
    return SentenceTransformer


def unit_rows(vectors_ND: np.ndarray) -> np.ndarray:
    """Every row over its norm, float32; a row (nearly) of zeros stays one, so that its cosines are 0."""
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.where(norms_N1 > 1e-6, vectors_ND / np.maximum(norms_N1, 1e-6), 0.0).astype(np.float32)
