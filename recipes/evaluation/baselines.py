"""Baselines scored as a model is: popularity, retrieval from similar training conversations, items that go with those
seen, a model behind an API."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import sparse
from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.base.same_request import digest
from convrec.data.schema import get_truth
from convrec.inference.answers import Answer, GenerationRequest, Store, model_answers
from convrec.inference.engines.placement import Placement
from convrec.lists.metrics import popularity_baseline
from convrec.llm import LLM, endpoint, merge_sampling
from convrec.llm import Answer as Reply
from convrec.retrieval.retriever import make_multi_hot
from convrec.titles.item import Item
from recipes.evaluation.retrieval import fitted, retrieve
from recipes.evaluation.split import Rows, Split, as_items

NEIGHBOURS = 50
# lambda; items of which the matrix and its inverse take 6.4 GB
EASE_PENALTY = 100.0
EASE_ITEMS = 20_000
RETRIEVAL = "retrieval"
API = "api:"  # --model api:NAME
Lists = list[list[Item | None]]  # one for each row of the split


def popular(split: Split, train: Rows, num_items: int) -> Lists:
    """What training rows want most often; where there are ratings, what is rated most often and was not seen."""
    if train.ratings is None:
        most_wanted: list[Item | None] = list(popularity_baseline(map(get_truth, train.rows), split.matcher, num_items))
        return [most_wanted] * len(split.rows)
    items_K, rated_RK = _named(split, train)
    nothing_KK = np.broadcast_to(0.0, (len(items_K), len(items_K)))
    return _going_with_seen(split, items_K, rated_RK, nothing_KK, num_items)


def retrieval(split: Split, train: Rows, num_items: int) -> Lists:
    """convrec.retrieval, fitted on these rows. Titles that no training row wants are in no list."""
    lists = retrieve(split, fitted(split, train.rows))
    return [as_items(split.catalog, items[:num_items]) for items in lists]


def neighbours(split: Split, train: Rows, num_items: int) -> Lists:
    """Item-item neighbours: the cosines of an item with the seen ones, over the users or training rows that have them;
    of the seen ones each counts for the NEIGHBOURS items nearest to it."""
    try:
        from implicit.nearest_neighbours import ItemItemRecommender
    except ModuleNotFoundError:
        raise UserError("--baselines neighbours needs the package implicit; pip install 'convrec[ratings]'") from None
    items_K, named_RK = _named(split, train)
    model = ItemItemRecommender(K=NEIGHBOURS + 1)  # an item's nearest is the item itself
    model.fit(named_RK.multiply(1 / np.sqrt(named_RK.sum(axis=0))).tocsr(), show_progress=False)
    return _going_with_seen(split, items_K, named_RK, model.similarity, num_items)


def ease(split: Split, train: Rows, num_items: int) -> Lists:
    """EASE (Steck, Embarrassingly shallow autoencoders for sparse data, WWW 2019): of the users or training rows X the
    weights B = I - P / diag(P) with P = (X'X + EASE_PENALTY I)^-1, summed over the seen items. The diagonal of B is 0.
    """
    items_K, named_RK = _named(split, train)
    if len(items_K) > EASE_ITEMS:
        told = (
            f"--train names {len(items_K):,} items, of which EASE makes a full matrix; it takes {EASE_ITEMS:,} at most"
        )
        raise UserError(f"--baselines ease: {told}; take neighbours")
    inverse_KK = np.linalg.inv((named_RK.T @ named_RK).toarray() + EASE_PENALTY * np.eye(len(items_K)))
    return _going_with_seen(split, items_K, named_RK, -inverse_KK / np.diag(inverse_KK), num_items)


def _named(split: Split, train: Rows) -> tuple[np.ndarray, Any]:
    """Find which items go together in training.

    Returns:
        K items, as catalog rows, and (R, K) sparse, 1 where a user has rated the item or, without ratings, where a
        training row has seen or wants it.
    """
    if train.ratings is not None:
        named_RM = _rated(split, *train.ratings)
    else:
        rows = zip(train.rows, split.wanted_rows(train.rows), strict=True)
        named = ({*split.reader.seen_rows(row["seen_titles"]), *items} for row, items in rows)
        named_RM = make_multi_hot(named, len(split.catalog), float)
    items_K = np.flatnonzero(named_RM.sum(axis=0).A1)
    return items_K, named_RM[:, items_K]


def _rated(split: Split, users_E: np.ndarray, items_E: np.ndarray) -> sparse.csr_matrix:
    """(users, catalog rows) sparse, 1 where the user has rated the item."""
    users_E = np.unique(users_E, return_inverse=True)[1]
    first_rows_E = np.asarray(split.matcher.index.items)[items_E]  # of an item with several rows the first
    shape = (int(users_E.max(initial=-1)) + 1, len(split.catalog))
    rated_RM = sparse.csr_matrix((np.ones(len(users_E)), (users_E, first_rows_E)), shape)
    rated_RM.data[:] = 1  # scipy adds what is there twice
    return rated_RM


def _going_with_seen(split: Split, items_K: np.ndarray, named_RK: Any, weights_KK: Any, num_items: int) -> Lists:
    """Of each row the unseen items with the largest sums of weights over the seen ones; on a tie the more popular."""
    popularity_K = np.asarray(named_RK.sum(axis=0)).ravel()
    tie_break_K = popularity_K / (1e9 * popularity_K.max(initial=1))
    lists: Lists = []
    for row in split.rows:
        seen = np.flatnonzero(np.isin(items_K, split.reader.seen_rows(row["seen_titles"])))
        scores_K = np.asarray(weights_KK[seen].sum(axis=0)).ravel() + tie_break_K
        scores_K[seen] = -np.inf
        order = np.argsort(-scores_K, kind="stable")[: min(num_items, len(items_K) - len(seen))]
        lists.append(as_items(split.catalog, items_K[order].tolist()))
    return lists


# of the split, what they are fitted on, and the number of items
BASELINES: Mapping[str, Callable[[Split, Rows, int], Lists]] = {
    "popularity": popular,
    RETRIEVAL: retrieval,
    "neighbours": neighbours,
    "ease": ease,
}


def answers_to(
    request: GenerationRequest,
    placement: Placement,
    *,
    role: str = "llm",
    progress: bool = True,
    api_sampling: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[dict[str, Answer], int]:
    """`model_answers`, also of a model behind an OpenAI-compatible endpoint (API), and how many are new.

    An endpoint's are zero-shot, of max_tokens and temperature, and of `api_sampling` beside or in place of them (None:
    not sent). Its address and key are the environment's, of the
    role (LLM_BASE_URL, LLM_API_KEY, see convrec.llm); LLM_MODEL is the name after API where there is one. Answers got
    before an interruption are kept in the path's folder. A prompt that the server refuses has an empty answer, which is
    not kept: it is asked again next time, and a line on stderr says how many and why.
    """
    if not request.model_path.startswith(API):
        return model_answers(request, placement=placement, progress=progress, **settings)
    served = endpoint(role, request.model_path.removeprefix(API))
    prompts = request.prompts
    path = request.path
    ours = {name: settings[name] for name in ("max_tokens", "temperature")}
    sampling = merge_sampling(ours, api_sampling)
    store = Store({"server": served.base_url, "model": served.model, **sampling}, prompts, path)
    replies: list[Reply] = []
    if missing := store.missing():
        # the client's own keys leave the address out; here another server's model of that name is another model
        server_key = digest(served.base_url)[:12]
        client = LLM(served, cache=path.parent / "api_answers" / server_key)
        replies = client.ask_all(missing, label="asking", **sampling)
        with store.written_at_the_end():
            store.keep([(index, _record(reply)) for index, reply in enumerate(replies) if not reply.error])
    if refused := [reply for reply in replies if reply.error]:
        tqdm.write(
            f"{len(refused)} of {len(prompts)} prompts refused, scored as empty, asked again next time; the first: "
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
