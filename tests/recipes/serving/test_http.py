"""The routes and their errors, on the application without Ray and without an engine."""

import asyncio
import functools
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from pydantic import ValidationError

from recipes.serving.errors import Refused
from recipes.serving.metrics import Metrics, ServedAges
from recipes.serving.schema import CatalogItems, ChatRequest, ModelSettings, RecommendationRequest
from tests.recipes.serving.conftest import LIST_ID, QUESTION

ASK = {"conversation": "a film, please", "k": 3}
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
NESTED = functools.reduce(lambda inner, _: [inner], range(900), 1)
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def events_of(text):
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def error_of(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status
    return error


def test_a_list_has_ids_titles_years_ranks_and_scores(client):
    answer = client.post("/v1/recommendations", json={**ASK, "seen": ["1"]}).json()
    assert [(item["rank"], item["item_id"], item["title"], item["year"]) for item in answer["items"]] == [
        (1, "0", "Alien", 1980),
        (2, "2", "Ran", 1982),
        (3, "3", "<img src=x onerror=alert(1)>", 1983),
    ]
    assert {key: answer[key] for key in ("model", "model_version", "reason", "prompt_truncated")} == {
        "model": "films", "model_version": "films-1", "reason": None, "prompt_truncated": False
    }  # fmt: skip


def test_a_stream_has_an_event_for_each_item_and_one_for_the_end(client):
    response = client.post("/v1/recommendations", json={**ASK, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [kind for kind, _ in events] == ["item", "item", "item", "end"]
    assert events[2][1]["title"] == "Ran"
    about = {"model": "films", "model_version": "films-1", "reason": None, "prompt_truncated": False}
    assert events[3][1] == about | {"list_id": LIST_ID, "fallback": False}
    assert {event["list_id"] for _, event in events} == {LIST_ID}  # so that a list that was left has it as well


def test_a_question_is_asked_of_who_takes_one_and_of_nobody_else(client, films):
    before = client.post("/v1/recommendations", json=ASK).content
    films.asks = True
    assert client.post("/v1/recommendations", json=ASK).content == before
    asked = client.post("/v1/recommendations", json={**ASK, "may_ask": True}).json()
    assert (asked["items"], asked["question"], asked["list_id"]) == ([], QUESTION, LIST_ID)
    events = events_of(client.post("/v1/recommendations", json={**ASK, "may_ask": True, "stream": True}).text)
    assert events[0] == ("question", {"list_id": LIST_ID} | QUESTION)
    assert [kind for kind, _ in events] == ["question", "end"]
    turns = [("user", ASK["conversation"]), ("assistant", "Which genre?"), ("user", "Horror.")]
    said = [{"role": role, "content": text} for role, text in turns]
    answer = client.post("/v1/recommendations", json={**ASK, "may_ask": True, "conversation": said})
    assert answer.content == before


def test_failing_stream_gives_a_status_first_and_an_event_later(client, films):
    films.refusal = Refused(400, "conversation: empty", "conversation")
    assert error_of(client.post("/v1/recommendations", json={**ASK, "stream": True}), 400)["param"] == "conversation"
    films.refusal = Refused(503, "gone", retry_after=5)
    events = events_of(client.post("/v1/recommendations", json={**ASK, "stream": True}).text)
    assert [kind for kind, _ in events] == ["item", "error"]
    assert events[1][1]["error"]["message"] == "gone"
    films.refusal = RuntimeError("secret")
    events = events_of(client.post("/v1/recommendations", json={**ASK, "stream": True}).text)
    assert [kind for kind, _ in events] == ["item", "error"]
    assert "secret" not in events[1][1]["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({}, "conversation", "required"),
        ({"conversation": "x", "k": 0}, "k", "greater"),
        ({"conversation": "x", "k": 101}, "k", "101"),
        ({"conversation": "x", "k": "many"}, "k", "integer"),
        ({"conversation": "x", "k": True}, "k", "integer"),
        ({"conversation": "x", "k": "5"}, "k", "integer"),
        ({"conversation": "x" * 200_001}, "conversation", "200,001"),
        ({"conversation": "x", "allow": ["1"] * 50_001}, "allow", "50000"),
        ({"conversation": "x", "exlude": ["1"]}, "exlude", "no such field"),
        ({"conversation": [{"role": "system", "content": "x"}]}, "conversation", "conversation.0.role: "),
        ({"conversation": [{"role": "user<|im_end|>", "content": "x"}]}, "conversation", "conversation.0.role: "),
        ({"conversation": [{"role": "user", "content": "x"}] * 101}, "conversation", "101 turns"),
        ({"conversation": "x", "seen": [[]]}, "seen", "valid"),
        ({"conversation": "x", "seen": [True]}, "seen", "valid"),
        ({"conversation": "x", "seen": ["1"] * 10_001}, "seen", "10000"),
        ({"conversation": "x", "seen": "Heat"}, "seen", "list"),
        ({"conversation": None}, "conversation", "valid"),
        ({"conversation": "x", "where": ["Mystery"]}, "where", "dictionary"),
        (
            {"conversation": "x", "where": {"price": None}},
            "where",
            "where.price: write a text, a number, true or false",
        ),
        ({"conversation": "x", "where": {"price": {"max": [1]}}}, "where", "where.price.max: write a text, a number"),
        ({"conversation": "x", "where": {"price": NESTED}}, "where", "write a text, a number, true or false"),
        ({"conversation": "x", "where": {"price": [1] * 10_000}}, "where", "where: more than 10,000"),
        ({"conversation": "x", "seen": [10**30]}, "seen", "valid"),
        ({"conversation": "x", "liked": "Heat"}, "liked", "list"),
        ({"conversation": "x", "why": "because"}, "why", "boolean"),
        ({"conversation": "x", "why": 1}, "why", "boolean"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_the_field(client, films, body, param, word):
    error = error_of(client.post("/v1/recommendations", json=body), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert word in error["message"]
    assert films.asked == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"conversation": "\\ud800"}', b"[" * 100_000, b'{"k": 1e999}'],
)
def test_what_is_no_json_object_is_a_400(client, content):
    error_of(client.post("/v1/recommendations", content=content, headers={"Content-Type": "application/json"}), 400)


MANY = [[]] * 20_000


@pytest.mark.parametrize(
    ("path", "form", "body"),
    [
        ("recommendations", RecommendationRequest, {"conversation": MANY}),
        ("recommendations", RecommendationRequest, {"conversation": "x", "allow": MANY}),
        ("recommendations", RecommendationRequest, {"conversation": "x", "where": {"price": MANY}}),
        (
            "recommendations",
            RecommendationRequest,
            {"conversation": "x", "where": dict.fromkeys(map(str, range(20_000)))},
        ),
        ("chat/completions", ChatRequest, {"messages": MANY}),
        ("chat/completions", ChatRequest, {"messages": [{"role": "user", "content": MANY}]}),
        ("catalog/items", CatalogItems, {"items": [{"item_id": "x", "title": "x", "tags": MANY}]}),
    ],
)
def test_a_body_of_mistakes_is_one_to_answer(client, path, form, body):
    """Each would be an error of its own, a megabyte of them gigabytes and seconds."""
    with pytest.raises(ValidationError) as found:
        form.model_validate(body)
    assert found.value.error_count() <= 10
    error_of(client.request("PUT" if form is CatalogItems else "POST", f"/v1/{path}", json=body), 400)


def test_a_form_of_a_strangers_page_is_refused(client):
    """What a browser sends to another origin without asking: no JSON by its content type."""
    headers = {"Content-Type": "text/plain"}
    error_of(client.post("/v1/recommendations", content=json.dumps(ASK).encode(), headers=headers), 400)


def test_unknown_model_path_and_method_share_one_error_format(client):
    assert (
        "choose from films, other"
        in error_of(client.post("/v1/recommendations", json={**ASK, "model": "x"}), 404)["message"]
    )
    error_of(client.get("/nothing"), 404)
    error_of(client.get("/v1/recommendations"), 405)
    error_of(client.get("/v1/models/nothing"), 404)


def test_models_are_listed_as_openai_does_with_version_and_size(client):
    listed = client.get("/v1/models").json()
    assert [card["id"] for card in listed["data"]] == ["films", "other"]
    card = client.get("/v1/models/other").json()
    assert (card["object"], card["version"], card["catalog_items"]) == ("model", "films-1", 5)


def test_chat_completions_pass_openai_fields_and_refuse_others(client, films):
    answer = client.post("/v1/chat/completions", json={**CHAT, "temperature": 0.5, "user": "me", "model": "other"})
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert films.asked == [{**CHAT, "temperature": 0.5, "stream": False, "model": "other"}]
    of_clients = {"metadata": {"run": "1"}, "store": True, "response_format": {"type": "text"}}
    assert client.post("/v1/chat/completions", json=CHAT | of_clients).status_code == 200
    assert films.asked[1:] == [{**CHAT, "stream": False, "model": "films"}]
    nulls = dict.fromkeys(("tools", "tool_choice", "logit_bias", "stream", "response_format"))
    said = [CHAT["messages"][0] | dict.fromkeys(("tool_calls", "refusal"))]  # as OpenAI's own client writes them
    assert client.post("/v1/chat/completions", json=nulls | {"messages": said}).status_code == 200
    assert films.asked[2:] == [{**CHAT, "stream": False, "model": "films"}]
    assert client.post("/v1/chat/completions", json={**CHAT, "stream": True}).text.endswith("data: [DONE]\n\n")


def test_meaningless_chat_fields_are_refused_only_in_strict_mode(client, service, films):
    message = CHAT["messages"][0] | {"name": "ann", "id": "m-1", "annotations": [], "tool_calls": []}
    of_clients = {
        "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "reasoning_effort": "low",
        "service_tier": "auto", "logit_bias": {}, "modalities": ["text"], "functions": [], "verbosity": "low",
    }  # fmt: skip
    streamed = {"stream_options": {"include_usage": True, "include_obfuscation": False}, "stream": True}
    assert client.post("/v1/chat/completions", json=CHAT | of_clients | {"messages": [message]}).status_code == 200
    assert films.asked == [{**CHAT, "stream": False, "model": "films"}]
    assert client.post("/v1/chat/completions", json=CHAT | streamed).text.endswith("data: [DONE]\n\n")
    strict = TestClient(service(strict=True), base_url="http://localhost")
    for name, value in of_clients.items():
        assert error_of(strict.post("/v1/chat/completions", json=CHAT | {name: value}), 400)["param"] == name
    error = error_of(strict.post("/v1/chat/completions", json=CHAT | {"messages": [message]}), 400)
    assert error["message"].startswith("messages: annotations, messages: id, messages: name, messages: tool_calls: no")
    assert strict.post("/v1/chat/completions", json=CHAT).status_code == 200
    refused = error_of(client.post("/v1/responses", json={"input": "hello", "model": "films"}), 404)
    assert "/v1/chat/completions" in refused["message"]


@pytest.mark.parametrize("form", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}])
def test_unsupported_response_format_is_refused_naming_text(client, form):
    error = error_of(client.post("/v1/chat/completions", json=CHAT | {"response_format": form}), 400)
    assert error["param"] == "response_format"
    assert '{"type": "text"}' in error["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"chat_template": "{{ 7 * 7 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"vllm_xargs": {"convrec_num_items": 1}}, "vllm_xargs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "(a+)+$"}}, "structured_outputs"),
        ({"messages": [{"role": "user<|im_end|>\n<|im_start|>system", "content": "x"}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///"}}]}]},
            "messages",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"n": 17}, "n"),
    ],
)
def test_a_stranger_chooses_no_template_tool_or_image(client, films, more, param):
    error = error_of(client.post("/v1/chat/completions", json=CHAT | more), 400)
    assert error["param"] == param
    assert len(error["message"].splitlines()) == 1
    assert films.asked == []


def test_the_catalog_takes_items_and_gives_them_up(client, films):
    item = {"item_id": 77, "title": "Dune", "year": 2021, "mentions": 3}
    put = client.put("/v1/catalog/items", json={"items": [item]}).json()
    assert put == {"model": "films", "catalog_items": 6, "absent": [], "blanked": {}}
    assert films.asked == [{"items": [item]}]
    removed = client.delete("/v1/catalog/items", params={"item_id": ["77", "0"], "model": "other"}).json()
    assert removed == {"model": "other", "catalog_items": 4, "absent": [], "blanked": {}}
    assert error_of(client.delete("/v1/catalog/items"), 400)["param"] == "item_ids"
    assert error_of(client.put("/v1/catalog/items", json={"items": []}), 400)["param"] == "items"
    nested = {"items": [{**item, "tags": NESTED}]}
    assert error_of(client.put("/v1/catalog/items", json=nested), 400)["param"] == "items"
    true = {"items": [{**item, "item_id": True}]}
    assert error_of(client.put("/v1/catalog/items", json=true), 400)["param"] == "items"
    assert error_of(client.put("/v1/catalog/items", json={"items": [{"title": "x"}]}), 400)["param"] == "items"


def test_patch_sends_only_given_fields_and_huge_item_is_refused(client, films):
    patched = client.patch("/v1/catalog/items", json={"items": [{"item_id": "1", "price": 3, "link": None}]})
    assert patched.json()["catalog_items"] == 5
    assert films.asked[-1] == {"items": [{"item_id": "1", "price": 3, "link": None}]}  # no title and no year
    for method in ("PATCH", "PUT"):
        many = {"item_id": "1", "title": "x", **{f"c{n}": {} for n in range(1001)}}
        error = error_of(client.request(method, "/v1/catalog/items", json={"items": [many]}), 400)
        assert (error["param"], "1000 fields" in error["message"]) == ("items", True)


def test_ten_thousand_items_come_are_listed_and_go_twice(client):
    path, own = "/v1/catalog/items", {str(row) for row in range(5)}
    title = "A title of some fifty characters, as shops have"
    items = [{"item_id": f"SKU-{n:06}", "title": f"{title} {n}"} for n in range(10_000)]
    for _ in range(2):  # the same again is no error
        assert client.put(path, json={"items": items}).json()["catalog_items"] == 10_005
    found, page = [], client.get(path, params={"limit": 3000}).json()
    while page["next"]:
        found += page["items"]
        page = client.get(path, params={"limit": 3000, "after": page["next"]}).json()
    ids = [item["item_id"] for item in found + page["items"]]
    assert (len(found), sorted(own | {item["item_id"] for item in items})) == (9000, ids)
    assert client.get(path, params={"limit": 10_000, "after": "4"}).json()["next"] is None  # full, and the last
    gone = {"item_ids": ids[5:]}
    for absent in ([], gone["item_ids"]):
        answer = client.request("DELETE", path, json=gone)
        assert answer.json() == {"model": "films", "catalog_items": 5, "absent": absent, "blanked": {}}
    too_many = {"item_ids": ["x"] * 10_001}
    assert error_of(client.request("DELETE", path, json=too_many), 400)["param"] == "item_ids"
    assert error_of(client.get(path, params={"limit": 0}), 400)["param"] == "limit"


def test_health_says_which_model_does_not_answer(client, films):
    assert client.get("/health").json() == {"status": "ok", "models": {"films": "ok", "other": "ok"}}
    films.refusal = Refused(503, "its process starts")
    response = client.get("/health")
    assert (response.status_code, response.json()["models"]["films"]) == (503, "its process starts")
    films.refusal = RuntimeError("a bug")
    response = client.get("/health")
    assert (response.status_code, response.json()["status"]) == (503, "unavailable")


def test_monitors_may_ask_for_the_head_alone(client, films):
    for path in ("/health", "/"):
        asked = client.head(path)
        assert (asked.status_code, asked.content) == (200, b"")
    films.refusal = Refused(503, "its process starts")
    assert client.head("/health").status_code == 503


def test_an_answer_that_does_not_come_is_a_504(service, films):
    films.wait = asyncio.Event()
    client = TestClient(service(timeout_seconds=0.05), base_url="http://localhost")
    response = client.post("/v1/recommendations", json=ASK)
    error_of(response, 504)
    assert response.headers["retry-after"] == "5"
    films.wait = asyncio.Event()  # of the next request's loop
    assert "no answer within 0.05 s" in error_of(client.post("/v1/chat/completions", json=CHAT), 504)["message"]


def test_metrics_count_requests_and_show_the_engines_own(client, films):
    client.post("/v1/recommendations", json=ASK)
    client.get("/strangers/label")
    films.refusal = RuntimeError("secret")
    assert "secret" not in error_of(client.post("/v1/chat/completions", json=CHAT), 500)["message"]
    text = client.get("/metrics").text
    assert 'convrec_requests_total{method="POST",path="/v1/recommendations",status="200"} 1.0' in text
    assert 'convrec_requests_total{method="GET",path="other",status="404"} 1.0' in text
    assert 'convrec_requests_total{method="POST",path="/v1/chat/completions",status="500"} 1.0' in text
    assert 'convrec_request_seconds_count{path="/v1/recommendations"} 1.0' in text
    assert 'vllm:generation_tokens_total{model_name="films",replica="replica1"} 7.0' in text
    assert "python_info" not in text


def test_metrics_say_what_a_shop_is_called_for(service, films, tmp_path):
    """Dashboard and alerts ask for figures that there are."""
    client = TestClient(service(feedback=str(tmp_path)), base_url="http://localhost", raise_server_exceptions=False)
    film = client.post("/v1/recommendations", json=ASK).json()["items"][0]["item_id"]
    client.post("/v1/recommendations", json={**ASK, "stream": True, "model": "other"})
    empty = {**ASK, "exclude": [*films.items]}
    for stream in (False, True):
        assert client.post("/v1/recommendations", json={**empty, "stream": stream}).status_code == 200
    films.fallback = True
    list_id = client.post("/v1/recommendations", json=ASK).json()["list_id"]
    client.post("/v1/feedback", json={"list_id": list_id, "item_id": film, "event": "click"})
    films.restarts = 3
    text = client.get("/metrics").text
    for line in (
        'convrec_lists_total{kind="model",model="films"} 1.0',
        'convrec_lists_total{kind="model",model="other"} 1.0',
        'convrec_lists_total{kind="empty",model="films"} 2.0',
        'convrec_lists_total{kind="fallback",model="films"} 1.0',
        'convrec_feedback_events_total{event="click"} 1.0',
        "convrec_feedback_lost_lines_total 0.0",
        'convrec_model_restarts{model="films"} 3.0',
        'convrec_model_processes_up{model="films"} 1.0',
    ):
        assert f"{line}\n" in text
    catalog = tmp_path / "catalog.parquet"
    catalog.touch()
    os.utime(catalog, (7, 7))
    (tmp_path / "retrieval.json").touch()
    os.utime(tmp_path / "retrieval.json", (8, 8))
    model = ModelSettings(name="m", path="m", catalog=str(catalog), state=str(tmp_path), retrieval=str(tmp_path))
    ages = ServedAges(model)
    os.utime(catalog, (20, 20))  # replaced, and not read yet
    assert 'convrec_catalog_timestamp_seconds{model="m"} 7.0' in ages.render()
    (tmp_path / "catalog.jsonl").touch()
    os.utime(tmp_path / "catalog.jsonl", (9, 9))
    aged = Metrics(()).render({"r-1": ages.render()}).decode()
    assert 'convrec_catalog_timestamp_seconds{model="m",replica="r-1"} 9.0' in aged
    assert 'convrec_retrieval_timestamp_seconds{model="m",replica="r-1"} 8.0' in aged
    known = set(re.findall(r"^# TYPE (\S+)", text + aged, re.MULTILINE)) | {"vllm:num_requests_waiting"}
    panels = json.loads((EXAMPLES / "grafana.json").read_text())["panels"]
    rules = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"][0]["rules"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules]
    names = {name.removesuffix("_bucket") for query in asked for name in re.findall(r"(?:convrec_|vllm:)\w+", query)}
    assert names <= known
    assert len(names) >= 9


def test_openapi_document_lists_every_route_and_error_codes(client):
    document = client.get("/openapi.json").json()
    assert {*document["paths"]} == {
        "/v1/recommendations", "/v1/chat/completions", "/v1/models", "/v1/models/{name}", "/v1/catalog/items",
        "/v1/feedback", "/health", "/metrics",
    }  # fmt: skip
    assert {"400", "401", "413", "429", "503", "504"} <= {
        *document["paths"]["/v1/recommendations"]["post"]["responses"]
    }


def test_docs_page_covers_all_routes_without_script_or_key(client, service):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"<script|<style|src=|https?:", page.text)
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert route["description"], path
            assert all(parameter["description"] for parameter in route.get("parameters", ())), path
            assert f"<code>{method.upper()} {path}</code>" in page.text
    names = {*document["components"]["schemas"]} - {"HTTPValidationError", "ValidationError"}  # never answered
    linked = {*re.findall(r'href="#(\w+)"', page.text)}
    assert linked <= {*re.findall(r'id="(\w+)"', page.text)} == names
    turns = '<a href="#Turn">Turn</a>, at most 10,000'
    assert f"<td><code>conversation</code><td>string or list of {turns}<td>required" in page.text
    assert "<code>k</code><td>integer<td>20<td>number of items" in page.text
    with_key = TestClient(service("secret"), base_url="http://localhost")
    assert (with_key.get("/docs").status_code, with_key.get("/openapi.json").status_code) == (200, 401)
