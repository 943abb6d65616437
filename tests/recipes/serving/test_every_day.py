"""What a shop does with a service every day, in the nightly tier: `make test-slow`."""

import asyncio
import gc
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow.parquet as pq
import pytest

from recipes.serving.model import load_fallback, load_recommender
from recipes.serving.schema import Limits
from tests.recipes.serving.without_engine import build_settings, served, write_films

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LIMITS = Limits(timeout_seconds=120)
ASK = {"conversation": "a film, please", "k": 5}
CHANGES = 10_000
WARM_SECONDS = 1.0  # of processor time, for the fallback's first answer
REQUESTS = 5000
GROWTH_BYTES = 40 << 20  # of a process, between the first thousand requests and the last


def ids(client: httpx.Client, **more: Any) -> list[str]:
    answer = client.post("/v1/recommendations", json=ASK | more).raise_for_status().json()
    return [item["item_id"] for item in answer["items"]]


def folder_of(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_services_sharing_state_see_each_others_changes(tmp_path: Path, unread_model: Path) -> None:
    write_films(tmp_path / "catalog.parquet", 50)
    settings = build_settings("films", unread_model, tmp_path / "catalog.parquet", tmp_path / "state")
    feedback = tmp_path / "feedback"
    with (
        served([settings], LIMITS, folder_of(tmp_path, "a"), feedback) as a,
        served([settings], LIMITS, folder_of(tmp_path, "b"), feedback) as b,
        httpx.Client(base_url=a.address, timeout=120) as first,
        httpx.Client(base_url=b.address, timeout=120) as second,
    ):
        for number in range(20):
            new = {"item_id": f"n{number}", "title": f"New Film {number}", "year": 2020}
            (first if number % 2 else second).put("/v1/catalog/items", json={"items": [new]}).raise_for_status()
            for client in (first, second):
                assert ids(client, allow=[f"n{number}"]) == [f"n{number}"]
        first.request("DELETE", "/v1/catalog/items", json={"item_ids": ["n3"]}).raise_for_status()
        assert ids(second, allow=["n3"]) == []
        shown = first.post("/v1/recommendations", json=ASK).json()
        click = {"list_id": shown["list_id"], "item_id": shown["items"][0]["item_id"], "event": "click"}
        assert second.post("/v1/feedback", json=click).status_code == 200  # behind one proxy


def test_replaced_catalog_keeps_the_changes_made_before(tmp_path: Path, unread_model: Path) -> None:
    catalog = tmp_path / "catalog.parquet"
    write_films(catalog, 50)
    settings = build_settings("films", unread_model, catalog, tmp_path / "state")
    new = {"item_id": "n", "title": "New Film", "year": 2020, "price": 2.0}
    with (
        served([settings], LIMITS, folder_of(tmp_path, "a")) as opened,
        httpx.Client(base_url=opened.address, timeout=120) as client,
    ):
        client.put("/v1/catalog/items", json={"items": [new]}).raise_for_status()
        client.patch("/v1/catalog/items", json={"items": [{"item_id": "f7", "price": 3.0}]}).raise_for_status()
        client.request("DELETE", "/v1/catalog/items", json={"item_ids": ["f3"]}).raise_for_status()
    write_films(tmp_path / "tomorrow.parquet", 60, first=2)
    shutil.move(tmp_path / "tomorrow.parquet", catalog)
    with (
        served([settings], LIMITS, folder_of(tmp_path, "b")) as opened,
        httpx.Client(base_url=opened.address, timeout=120) as client,
    ):
        assert client.get("/v1/models/films").json()["catalog_items"] == 60  # one is removed, one is new
        assert ids(client, allow=["f0", "f3", "f61", "n"]) == ["f61", "n"]
        assert ids(client, where={"price": {"min": 2.5}}) == ["f7"]


def test_a_live_split_of_two_models_is_told_apart_by_metrics(tmp_path: Path, unread_model: Path) -> None:
    write_films(tmp_path / "catalog.parquet", 50)
    models = [
        build_settings(name, unread_model, tmp_path / "catalog.parquet", tmp_path / f"state-{name}")
        for name in ("now", "next")
    ]
    with (
        served(models, LIMITS, folder_of(tmp_path, "a")) as opened,
        httpx.Client(base_url=opened.address, timeout=120) as client,
    ):
        for number in range(40):
            ids(client, model="next" if number % 4 == 0 else "now")
        assert ids(client, model="next", allow=[]) == []
        text = client.get("/metrics").text
    for line in (
        'convrec_lists_total{kind="fallback",model="now"} 30.0',  # popular items, as there is no engine
        'convrec_lists_total{kind="fallback",model="next"} 10.0',
        'convrec_lists_total{kind="empty",model="next"} 1.0',
    ):
        assert line in text


def test_fallback_is_warm_after_a_restart_with_many_changes(tmp_path: Path, unread_model: Path) -> None:
    write_films(tmp_path / "catalog.parquet", CHANGES)
    settings = build_settings("films", unread_model, tmp_path / "catalog.parquet", tmp_path / "state")
    films = pq.read_table(tmp_path / "catalog.parquet").to_pylist()
    with load_recommender(settings, 100, with_engine=False) as of_the_models_process:
        of_the_models_process.add_items([film | {"title": f"Old {film['title']}"} for film in films])
    fallback = load_fallback(settings, Limits(fallback_after_seconds=1))
    assert fallback
    begin = time.process_time()
    answer = asyncio.run(fallback.answer(ASK))
    seconds = time.process_time() - begin
    assert len(answer["items"]) == ASK["k"]
    assert seconds < WARM_SECONDS


def test_five_thousand_requests_leave_memory_flat(tmp_path: Path, unread_model: Path) -> None:
    write_films(tmp_path / "catalog.parquet", 500)
    settings = build_settings("films", unread_model, tmp_path / "catalog.parquet", tmp_path / "state")
    with (
        served([settings], LIMITS, folder_of(tmp_path, "a"), tmp_path / "feedback") as opened,
        httpx.Client(base_url=opened.address, timeout=120) as client,
        ThreadPoolExecutor(4) as threads,
    ):

        def ask(number: int) -> None:
            if number % 50 == 0:
                price = {"item_id": f"f{number % 500}", "price": float(number)}
                answer = client.patch("/v1/catalog/items", json={"items": [price]})
            else:
                allow = [f"f{(number + other) % 500}" for other in range(20)]
                answer = client.post("/v1/recommendations", json=ASK | {"allow": allow})
            assert answer.status_code == 200, answer.text

        processes = [psutil.Process(), *opened.processes]
        sizes = []
        for first in range(0, REQUESTS, 1000):
            list(threads.map(ask, range(first, first + 1000)))
            gc.collect()
            sizes.append([process.memory_info().rss for process in processes])
        growth = [last - first for first, last in zip(sizes[0], sizes[-1], strict=True)]
        print(f"{REQUESTS} requests: grown by {[f'{one >> 20} MiB' for one in growth]}")
        assert max(growth) < GROWTH_BYTES
