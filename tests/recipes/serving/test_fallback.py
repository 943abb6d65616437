"""Popular items in place of lists that are late, over HTTP: the fallback is the real one, the model needs no engine."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from convrec.base.errors import UserError
from convrec.inference.served_catalog.journal import FILE
from recipes.retrieval import fit_retrieval
from recipes.serving.errors import Ended, Refused
from recipes.serving.http import build
from recipes.serving.model import load_fallback, load_recommender
from recipes.serving.replicas import Model
from recipes.serving.schema import Limits, ModelSettings, ServiceSettings
from tests.recipes.evaluation.small import row, write_rows
from tests.recipes.serving.conftest import Films
from tests.recipes.serving.test_http import error_of, events_of
from tests.recipes.serving.test_processes import started  # noqa: F401

ASK = {"conversation": "a film, please", "k": 3}
FIELDS = {"item_id", "title", "clean_title", "year", "columns", "rank", "score", "why"}


@pytest.fixture
def settings(tmp_path: Path, unread_model: Path) -> ModelSettings:
    table = {"item_id": ["0", "1", "2", "3"], "title": ["Alien", "Heat", "Ran", "Up"], "year": [1979, 1995, 1985, 2009]}
    further = {"price": [9.5, 3.0, 5.0, None], "mentions": [1, 5, 9, 0], "genres": [["Space"], ["Crime"], ["War"], []]}
    pq.write_table(pa.table(table | further), tmp_path / "catalog.parquet")
    files = {"path": str(unread_model), "catalog": str(tmp_path / "catalog.parquet"), "state": str(tmp_path / "state")}
    return ModelSettings(name="films", show=["price"], **files)


@pytest.fixture
def client(films: Films, settings: ModelSettings) -> Callable[..., TestClient]:
    def client(after: float | None = 0.1) -> TestClient:
        limits = Limits(timeout_seconds=3, fallback_after_seconds=after)
        service = ServiceSettings(models=[settings], limits=limits, loopback=True)
        models = {"films": Model([films], 3, load_fallback(settings, limits))}
        return TestClient(build(service, models, None), base_url="http://localhost", raise_server_exceptions=False)

    return client


def test_late_list_falls_back_to_popular_items_with_same_filters(
    client: Callable[..., TestClient], films: Films
) -> None:
    service = client()
    assert [item["item_id"] for item in service.post("/v1/recommendations", json=ASK).json()["items"]] == [
        "0",
        "1",
        "2",
    ]
    films.wait = asyncio.Event()
    asked = ASK | {"where": {"price": {"max": 9}}, "exclude": ["2"], "why": True, "liked": ["Heat"]}
    answer = service.post("/v1/recommendations", json=asked).json()
    (item,) = answer.pop("items")
    assert item.keys() == FIELDS
    assert (item["item_id"], item["columns"], item["score"]) == ("1", {"price": 3.0}, None)
    assert answer.pop("reason").startswith("4 items in the catalog, 2 match `where`, 1 seen or excluded")
    assert answer.pop("model_version").startswith("model-")
    assert answer.pop("list_id").startswith("list-")
    assert answer == {"model": "films", "prompt_truncated": False, "fallback": True}
    put = service.put("/v1/catalog/items", json={"items": []})
    assert put.status_code == 400


def test_fallback_covers_dead_and_slow_models_not_bad_requests(client: Callable[..., TestClient], films: Films) -> None:
    service = client()
    for late in (Ended(), Refused(504, "no answer within 3 s")):
        films.refusal = late
        answer = service.post("/v1/recommendations", json=ASK).json()
        assert ([item["item_id"] for item in answer["items"]], answer["fallback"]) == (["2", "1", "0"], True)
    films.refusal = Refused(400, "k: 30", "k")
    assert error_of(service.post("/v1/recommendations", json=ASK), 400)["param"] == "k"
    films.refusal = Refused(503, "gone")
    wrong = ASK | {"where": {"prize": 1}}
    error = error_of(service.post("/v1/recommendations", json=wrong), 400)
    assert (error["param"], "did you mean price?" in error["message"]) == ("where", True)
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    error_of(service.post("/v1/chat/completions", json=chat), 503)
    error_of(service.get("/v1/models/films"), 503)


def test_stream_falls_back_only_before_its_first_item(client: Callable[..., TestClient], films: Films) -> None:
    service, streamed = client(), ASK | {"stream": True}
    films.refusal = Refused(503, "gone")
    events = events_of(service.post("/v1/recommendations", json=streamed).text)
    assert [kind for kind, _ in events] == ["item", "error"]  # the model's own first item had been sent
    films.items.clear()  # nothing is sent before it fails
    films.wait = asyncio.Event()

    async def nothing(request: dict[str, Any]) -> Any:
        await asyncio.sleep(30)
        yield

    films.recommend_stream = nothing  # type: ignore[method-assign]
    events = events_of(service.post("/v1/recommendations", json=streamed).text)
    assert [kind for kind, _ in events] == ["item", "item", "item", "end"]
    assert [data["item_id"] for kind, data in events if kind == "item"] == ["2", "1", "0"]
    assert events[-1][1]["fallback"] is True
    assert len({data["list_id"] for _, data in events}) == 1


def test_without_being_asked_for_there_is_none(client: Callable[..., TestClient], films: Films) -> None:
    films.refusal = Ended()
    error_of(client(after=None).post("/v1/recommendations", json=ASK), 503)


def test_it_knows_what_was_changed_in_the_catalog_meanwhile(
    client: Callable[..., TestClient], films: Films, settings: ModelSettings
) -> None:
    service, films.refusal = client(), Ended()
    with (Path(settings.state or "") / FILE).open("a") as journal:  # as the model's process does
        journal.write(json.dumps({"n": {"title": "Dune", "year": 2021, "mentions": 50, "price": 1}, "2": None}) + "\n")
    answer = service.post("/v1/recommendations", json=ASK).json()
    assert [(item["item_id"], item["columns"]["price"]) for item in answer["items"]] == [
        ("n", 1.0), ("1", 3.0), ("0", 9.5)
    ]  # fmt: skip
    with (Path(settings.state or "") / FILE).open("a") as journal:
        journal.write("no JSON\n")
    assert "damaged or gone" in error_of(service.post("/v1/recommendations", json=ASK), 503)["message"]


def test_it_does_not_wait_for_changes_that_are_being_applied(settings: ModelSettings) -> None:
    with load_recommender(settings, 4, with_engine=False) as recommender:
        with (Path(settings.state or "") / FILE).open("a") as journal:
            journal.write(json.dumps({"2": {"title": "Ran Again", "year": 1986, "mentions": 9}}) + "\n")
        with recommender.catalog._lock:  # as a thread has it that applies many changes
            found = asyncio.run(asyncio.wait_for(recommender.apopular("a film", 3), 30))
        assert [item.item_id for item in found] == ["1", "0", "3"]  # without the item that changes
        assert recommender.popular("a film", 1).items[0].title == "Ran Again"


def test_a_service_that_could_give_none_does_not_start(settings: ModelSettings) -> None:
    table = pq.read_table(settings.catalog).drop_columns(["mentions"])
    pq.write_table(table, settings.catalog)
    with pytest.raises(UserError, match="fallback: "):
        load_fallback(settings, Limits(fallback_after_seconds=1))
    judge = ModelSettings(name="judge", path="x")
    assert load_fallback(judge, Limits(fallback_after_seconds=1)) is None


def test_retrieval_fallback_uses_similar_conversations(
    client: Callable[..., TestClient], films: Films, settings: ModelSettings
) -> None:
    """Ran and Heat are the popular ones. No counts and no weight beside a model are needed."""
    catalog = Path(settings.catalog or "")
    titles = {"Alien": 1979, "Heat": 1995, "Ran": 1985, "Up": 2009}
    train = [row(f"a{n}_t1", "a balloon in the sky", ["Up"], films=titles) for n in range(2)]
    train += [row(f"b{n}_t1", "robbery", ["Heat"], films=titles) for n in range(3)]
    file = Path(write_rows(catalog.with_name("train.parquet"), train))
    settings.retrieval = str(fit_retrieval([file], file, catalog)["out"])
    pq.write_table(pq.read_table(catalog).drop_columns(["mentions"]), catalog)
    service, films.refusal = client(), Ended()
    answer = service.post("/v1/recommendations", json=ASK | {"conversation": "balloon films", "exclude": ["0"]}).json()
    assert ([item["item_id"] for item in answer["items"]], answer["fallback"]) == (["3", "1", "2"], True)
    assert [item["score"] for item in answer["items"]] == [None] * 3


def test_a_killed_process_leaves_the_list_to_it(
    started: Callable[..., Model],  # noqa: F811
    settings: ModelSettings,
) -> None:
    """A real process, killed while it answers; the next one is not waited for."""

    async def scenario() -> None:
        model = started(1)
        model.fallback = load_fallback(settings, Limits(fallback_after_seconds=60))
        pid = (await model.ask("describe"))["pid"]
        os.kill(pid, signal.SIGKILL)
        assert model.fallback
        model.fallback = model.fallback._replace(seconds=0.5)
        answer = await asyncio.wait_for(model.ask("recommend", ASK), 10)
        assert (answer["fallback"], len(answer["items"])) == (True, 3)

    asyncio.run(scenario())
