"""Baselines that are scored like a model: popularity, retrieval, item neighbours, EASE, and models behind an API."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import sparse
from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.base.same_request import digest
from convrec.data.schema import get_truth
from convrec.inference.answers import Answer, GenerationRequest, Store, load_or_generate_answers
from convrec.inference.engines.placement import Placement
from convrec.lists.metrics import popularity_baseline
from convrec.llm import LLM, endpoint, merge_sampling
from convrec.llm import Answer as Reply
from convrec.retrieval.retriever import make_multi_hot
from convrec.titles.item import Item
from recipes.evaluation.retrieval import fit_retriever, retrieve
from recipes.evaluation.split import Rows, Split, to_items

NEIGHBOURS = 50
EASE_PENALTY = 100.0  # lambda of EASE
EASE_ITEMS = 20_000  # for this many items the matrix and its inverse take 6.4 GB
RETRIEVAL = "retrieval"
API = "api:"  # --model api:NAME
Lists = list[list[Item | None]]  # one for each row of the split


def rank_by_popularity(split: Split, train: Rows, num_items: int) -> Lists:
    """Recommend the most frequent ground truths of training, or, with ratings, the most often rated unseen items.

    Args:
        split: the rows to recommend for.
        train: the training rows. Without ratings all rows get the same list, with seen items.
        num_items: length of the lists; shorter if training has fewer items.

    Returns:
        One list per row, best first.
    """
    if train.ratings is None:
        most_wanted: list[Item | None] = list(popularity_baseline(map(get_truth, train.rows), split.matcher, num_items))
        return [most_wanted] * len(split.rows)
    items_K, rated_RK = _build_interactions(split, train)
    nothing_KK = np.broadcast_to(0.0, (len(items_K), len(items_K)))
    return _rank_by_seen_items(split, items_K, rated_RK, nothing_KK, num_items)


def rank_by_retrieval(split: Split, train: Rows, num_items: int) -> Lists:
    """Recommend with convrec.retrieval fitted on the training rows.

    Args:
        split: the rows to recommend for.
        train: the training rows; only their ground truths are ever listed.
        num_items: length of the lists; shorter if fewer items are known.

    Returns:
        One list per row, best first, without seen items.

    Raises:
        UserError: nothing can be fitted on the training rows.
    """
    lists = retrieve(split, fit_retriever(split, train.rows), num_items)
    return [to_items(split.catalog, items) for items in lists]


def rank_by_neighbours(split: Split, train: Rows, num_items: int) -> Lists:
    """Rank items by the sum of their cosine similarities to the seen items.

    Cosines are over users, or over training rows where there are no ratings. Each seen item adds to its NEIGHBOURS
    nearest items only.

    Raises:
        UserError: The package implicit is not installed.
    """
    try:
        from implicit.nearest_neighbours import ItemItemRecommender
    except ModuleNotFoundError:
        raise UserError(
            "evaluation.missing-package",
            "--baselines neighbours: the package implicit is not installed. Run pip install 'convrec[ratings]'.",
        ) from None
    items_K, named_RK = _build_interactions(split, train)
    model = ItemItemRecommender(K=NEIGHBOURS + 1)  # an item's nearest is the item itself
    model.fit(named_RK.multiply(1 / np.sqrt(named_RK.sum(axis=0))).tocsr(), show_progress=False)
    return _rank_by_seen_items(split, items_K, named_RK, model.similarity, num_items)


def rank_by_ease(split: Split, train: Rows, num_items: int) -> Lists:
    """Rank items with EASE (Steck, Embarrassingly shallow autoencoders for sparse data, WWW 2019).

    An item's score is the sum of its weights B over the seen items, where X are the users or training rows,
    P = (X'X + EASE_PENALTY I)^-1 and B = I - P / diag(P). The diagonal of B is 0.

    Raises:
        UserError: Training has more than EASE_ITEMS items.
    """
    items_K, named_RK = _build_interactions(split, train)
    if len(items_K) > EASE_ITEMS:
        raise UserError(
            "evaluation.too-many-items",
            f"--baselines ease: --train has {len(items_K):,} items, and EASE's dense matrix is limited to "
            f"{EASE_ITEMS:,}. Use neighbours.",
        )
    inverse_KK = np.linalg.inv((named_RK.T @ named_RK).toarray() + EASE_PENALTY * np.eye(len(items_K)))
    return _rank_by_seen_items(split, items_K, named_RK, -inverse_KK / np.diag(inverse_KK), num_items)


def _build_interactions(split: Split, train: Rows) -> tuple[np.ndarray, Any]:
    """Build the matrix of users, or training rows, and their items.

    Returns:
        K items, as catalog rows, and a sparse (R, K) matrix: 1 where a user has rated the item or, without ratings,
        where the item is among a training row's seen titles or ground truth.
    """
    if train.ratings is not None:
        named_RM = _build_rating_matrix(split, *train.ratings)
    else:
        rows = zip(train.rows, split.find_relevant_rows(train.rows), strict=True)
        named = ({*split.reader.seen_rows(row["seen_titles"]), *items} for row, items in rows)
        named_RM = make_multi_hot(named, len(split.catalog), float)
    items_K = np.flatnonzero(named_RM.sum(axis=0).A1)
    return items_K, named_RM[:, items_K]


def _build_rating_matrix(split: Split, users_E: np.ndarray, items_E: np.ndarray) -> sparse.csr_matrix:
    """Return a sparse matrix (users, catalog rows): 1 where the user has rated the item."""
    users_E = np.unique(users_E, return_inverse=True)[1]
    first_rows_E = np.asarray(split.matcher.index.items)[items_E]  # the first catalog row of an item
    shape = (int(users_E.max(initial=-1)) + 1, len(split.catalog))
    rated_RM = sparse.csr_matrix((np.ones(len(users_E)), (users_E, first_rows_E)), shape)
    rated_RM.data[:] = 1  # scipy adds up duplicate entries
    return rated_RM


def _rank_by_seen_items(split: Split, items_K: np.ndarray, named_RK: Any, weights_KK: Any, num_items: int) -> Lists:
    """List each row's unseen items by their sum of weights over the seen items; ties go to the more popular item."""
    popularity_K = np.asarray(named_RK.sum(axis=0)).ravel()
    tie_break_K = popularity_K / (1e9 * popularity_K.max(initial=1))
    lists: Lists = []
    for row in split.rows:
        seen = np.flatnonzero(np.isin(items_K, split.reader.seen_rows(row["seen_titles"])))
        scores_K = np.asarray(weights_KK[seen].sum(axis=0)).ravel() + tie_break_K
        scores_K[seen] = -np.inf
        order = np.argsort(-scores_K, kind="stable")[: min(num_items, len(items_K) - len(seen))]
        lists.append(to_items(split.catalog, items_K[order].tolist()))
    return lists


# Each takes the split, the training rows that it is fitted on, and the number of items to list.
BASELINES: Mapping[str, Callable[[Split, Rows, int], Lists]] = {
    "popularity": rank_by_popularity,
    RETRIEVAL: rank_by_retrieval,
    "neighbours": rank_by_neighbours,
    "ease": rank_by_ease,
}


def generate_answers(
    request: GenerationRequest,
    placement: Placement,
    *,
    role: str = "llm",
    progress: bool = True,
    api_sampling: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[dict[str, Answer], int]:
    """Generate a model's answers, with vLLM or through an OpenAI-compatible endpoint (API).

    An endpoint gets `max_tokens` and `temperature` of the settings, overridden by `api_sampling` (null drops a
    parameter). Its address and key come from the environment (LLM_BASE_URL and LLM_API_KEY for the role `llm`, see
    convrec.llm); the name after API overrides LLM_MODEL. After an interruption, stored answers are reused. A prompt
    that the server refuses gets an empty answer, which is not stored; a line on stderr says how many there are and why.

    Returns:
        Answers by prompt id, and how many of them are new.
    """
    if not request.model_path.startswith(API):
        return load_or_generate_answers(request, placement=placement, progress=progress, **settings)
    served = endpoint(role, request.model_path.removeprefix(API))
    prompts = request.prompts
    path = request.path
    ours = {name: settings[name] for name in ("max_tokens", "temperature")}
    sampling = merge_sampling(ours, api_sampling)
    store = Store({"server": served.base_url, "model": served.model, **sampling}, prompts, path)
    replies: list[Reply] = []
    if missing := store.missing():
        # the client's cache keys leave out the address, but a model of the same name on another server is another one
        server_key = digest(served.base_url)[:12]
        client = LLM(served, cache=path.parent / "api_answers" / server_key)
        replies = client.ask_all(missing, label="asking", **sampling)
        with store.flush_on_exit():
            store.keep([(index, _record(reply)) for index, reply in enumerate(replies) if not reply.error])
    if refused := [reply for reply in replies if reply.error]:
        tqdm.write(
            f"The server refused {len(refused)} of {len(prompts)} prompts; their lists count as empty, and the next "
            f"evaluation retries them. The first: "
            f"{refused[0].error}",
            file=sys.stderr,
        )
    empty = _record(Reply("", finish_reason="error"))
    answers = store.answers()
    return {name: answers.get(name, empty) for name in prompts}, len(missing)


def _record(reply: Reply) -> Answer:
    return {
        "text": reply.text,
        "token_ids": [],
        "finish_reason": reply.finish_reason or "unknown",
        "prompt_tokens": reply.prompt_tokens,
        "prompt_truncated": False,
    }
