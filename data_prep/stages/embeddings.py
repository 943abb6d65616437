"""Embed texts as unit vectors, for cosine similarities.

tfidf-svd                     TF-IDF of words and item names (`title (year)` is one term) with truncated SVD, fitted on
                              the texts at hand. Needs no download, but only knows which words occur together
sentence-transformers:MODEL   a sentence-transformers model by name or folder; needs the extra `embeddings`
"""

import re
from collections.abc import Collection, Sequence

import numpy as np

from convrec.base.errors import UserError

TFIDF_SVD = "tfidf-svd"
SENTENCE_TRANSFORMERS = "sentence-transformers:"
MAX_FEATURES = 50_000
_WORD = re.compile(r"[^\W\d_][^\W\d_'’]+")
_YEAR = re.compile(r" \(\d{4}\)")


def check_embedding(name: str) -> None:
    """Check that an embedding is known and its library is installed; the model itself is not loaded.

    Raises:
        UserError: it is not.
    """
    if name == TFIDF_SVD:
        return
    model = name.removeprefix(SENTENCE_TRANSFORMERS)
    if model == name or not model:
        raise UserError(
            "demonstrations.unknown-embedding", f"--embedding {name}: give {TFIDF_SVD} or {SENTENCE_TRANSFORMERS}MODEL"
        )
    _import_sentence_transformer()


def make_embedder(
    name: str,
    texts: Sequence[str],
    names: Collection[str] = (),
    dimensions: int = 256,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> "Embedder":
    """Make an embedder.

    Args:
        name: TFIDF_SVD or SENTENCE_TRANSFORMERS and a model.
        texts: TFIDF_SVD: the texts it is fitted on.
        names: TFIDF_SVD: names of items, which are terms.
        dimensions: TFIDF_SVD: maximum dimensions.
        seed: TFIDF_SVD: random seed of the decomposition.
        trust_remote_code: SENTENCE_TRANSFORMERS: whether code that comes with the model may run.

    Returns:
        An embedder whose `encode` returns (n, D) float32; rows have norm 1, or 0 if the text has no known term.

    Raises:
        UserError: The embedding is unknown, does not load, or finds no words in the texts.
    """
    check_embedding(name)
    if name == TFIDF_SVD:
        return TfidfSvd(texts, names, dimensions, seed)
    return SentenceTransformerEmbedder(name.removeprefix(SENTENCE_TRANSFORMERS), trust_remote_code)


class TfidfSvd:
    """TF-IDF with truncated SVD."""

    def __init__(self, texts: Sequence[str], names: Collection[str], dimensions: int, seed: int) -> None:
        """Fit on `texts`, with at most `dimensions` dimensions; fewer if there are fewer terms or texts."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

        self.names = {name.lower() for name in names}
        self.longest_name = max((len(name.split()) for name in self.names), default=0)
        self.ignored = ENGLISH_STOP_WORDS | {"user", "system"}  # speakers carry no meaning
        self.vectorizer = TfidfVectorizer(
            analyzer=self.extract_terms, sublinear_tf=True, max_features=MAX_FEATURES, dtype=np.float32
        )
        try:
            weights = self.vectorizer.fit_transform(texts)
        except ValueError as error:  # scikit-learn's "empty vocabulary"
            raise UserError(
                "demonstrations.no-words", f"--embedding {TFIDF_SVD}: the texts have no words ({error})"
            ) from None
        num_dimensions = min(dimensions, *(size - 1 for size in weights.shape))
        self.svd = TruncatedSVD(num_dimensions, random_state=seed).fit(weights) if num_dimensions > 0 else None

    def extract_terms(self, text: str) -> list[str]:
        """Return the lower-case words without stop words and years, and every item name in the text."""
        text = text.lower()
        return [word for word in _WORD.findall(text) if word not in self.ignored] + self._find_names(text)

    def _find_names(self, text: str) -> list[str]:
        names = []
        for year in _YEAR.finditer(text):
            words = text[max(0, year.start() - 200) : year.start()].split()[-self.longest_name :]
            endings = (" ".join(words[start:]) + year[0] for start in range(len(words)))
            names += [name for name in endings if name in self.names][:1]  # the longest one
        return names

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors, (n, D) float32."""
        weights = self.vectorizer.transform(texts)
        return normalise_rows(weights.toarray() if self.svd is None else self.svd.transform(weights))


class SentenceTransformerEmbedder:
    """A model of sentence-transformers."""

    def __init__(self, model: str, trust_remote_code: bool) -> None:
        try:
            self.model = _import_sentence_transformer()(model, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            problem = f"--embedding {SENTENCE_TRANSFORMERS}{model}: the model does not load ({error})"
            if "trust_remote_code" in str(error):
                problem += "; give --trust-remote-code if you trust its code"
            raise UserError("demonstrations.unloadable-model", problem) from error

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors, (n, D) float32."""
        return normalise_rows(self.model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True))


Embedder = TfidfSvd | SentenceTransformerEmbedder


def _import_sentence_transformer() -> type:
    try:
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UserError(
            "demonstrations.missing-package",
            f"--embedding {SENTENCE_TRANSFORMERS}...: sentence-transformers is not installed; install the extra "
            f'`embeddings` (pip install -e ".[embeddings]"), or use --embedding {TFIDF_SVD}',
        ) from None
    return SentenceTransformer


def normalise_rows(vectors_ND: np.ndarray) -> np.ndarray:
    """Divide each row by its norm.

    Returns:
        (N, D) float32. A row of (almost) zeros becomes zeros, so that its cosines are 0.
    """
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.where(norms_N1 > 1e-6, vectors_ND / np.maximum(norms_N1, 1e-6), 0.0).astype(np.float32)
