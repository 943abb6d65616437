"""The client against a real HTTP server: requests, retries, costs, the cache, and the hidden key."""

import io
import json
import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from openai._constants import INITIAL_RETRY_DELAY, MAX_RETRY_DELAY

from convrec.llm import LLM, Answer, AnswerCache, Endpoint, NoAnswer, endpoint
from convrec.llm.client import MAX_RETRIES, UNANSWERED_IN_A_ROW, back_off
from tests.user_errors import refuses

KEY = "sk-very-secret"


def make_client(server, cache, **settings):
    return LLM(Endpoint(server.url, "tiny", KEY), cache, **settings)


def echo(body, count):
    return "re: " + body["messages"][-1]["content"]


def make_error(status, **headers):
    http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, http_headers, json.dumps({"error": {"message": "no"}})


def test_answers_come_in_order_and_are_paid_for_once(chat_server, tmp_path):
    server = chat_server(echo)
    first = make_client(server, tmp_path)
    prompts = ["a", "b", "a", [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}]]
    answers = first.ask_all(prompts, temperature=0.0, max_tokens=5)
    assert [answer.text for answer in answers] == ["re: a", "re: b", "re: a", "re: c"]
    assert len(server.bodies) == 3  # `a` is one request
    assert server.bodies[0]["temperature"] == 0.0
    assert server.bodies[0]["max_tokens"] == 5
    # 3 answers of 10 + 2 tokens
    assert (first.usage.asked, first.usage.cached, first.usage.prompt_tokens) == (3, 1, 30)

    second = make_client(server, tmp_path)
    assert second.ask_all(prompts, temperature=0.0, max_tokens=5) == answers
    assert len(server.bodies) == 3
    assert (second.usage.asked, second.usage.cached, second.usage.prompt_tokens) == (0, 4, 0)
    second.ask_all(["a"], temperature=1.0, max_tokens=5)  # other sampling parameters: another answer
    assert len(server.bodies) == 4


def test_rate_limits_errors_and_lost_connections_are_retried(chat_server, tmp_path):
    def behave(body, count):
        errors = {0: make_error(429, Retry_After="0.2"), 1: make_error(500), 2: make_error(503)}
        return errors.get(count) or echo(body, count)

    server = chat_server(behave)
    llm = make_client(server, tmp_path, concurrency=1)
    start = time.monotonic()
    assert [answer.text for answer in llm.ask_all(["a"])] == ["re: a"]
    assert time.monotonic() - start >= 0.2
    assert len(server.bodies) == 4
    assert llm.usage.rate_limited == 1


def test_parameters_unknown_to_the_library_are_sent_too(chat_server, tmp_path):
    server = chat_server(echo)
    sampling = {"temperature": 0.5, "top_k": 20, "extra_body": {"min_p": 0.1}}
    make_client(server, tmp_path).ask_all(["a"], **sampling)
    body = server.bodies[0]
    assert (body["temperature"], body["top_k"], body["min_p"]) == (0.5, 20, 0.1)
    assert "extra_body" not in body


@pytest.mark.parametrize(
    "headers",
    [{"Retry_After": "0.6"}, {}, {"Retry_After": "0.01"}],
    ids=["as long as the server asks", "for the back-off", "at least for the back-off"],
)
def test_a_rate_limit_holds_every_request(chat_server, tmp_path, headers):
    times = {}

    def behave(body, count):
        name = body["messages"][0]["content"]
        times.setdefault(name, time.monotonic())
        if name == "limited" and count < 2:
            return make_error(429, **headers)
        deadline = time.monotonic() + 20
        while name == "other" and not llm._not_before and time.monotonic() < deadline:
            time.sleep(0.01)
        return echo(body, count)

    # `other` is in flight; its worker becomes free during the pause and must not send `later` before the pause ends.
    llm = make_client(chat_server(behave), tmp_path, concurrency=2)
    llm.ask_all(["limited", "other", "later"])
    assert times["later"] - times["limited"] >= 0.45


def test_retries_outlast_a_limit_per_minute():
    delays = [min(INITIAL_RETRY_DELAY * 2**retry, MAX_RETRY_DELAY) for retry in range(MAX_RETRIES)]
    assert 0.75 * sum(delays) > 60  # the library subtracts up to a quarter
    assert sum(map(back_off, range(8))) > 60
    assert back_off(1000) <= 30


@pytest.mark.parametrize("retry_after", ["inf", "soon", "-1", "Wed, 40 Oct 99999 07:28:00 GMT"])
def test_an_invalid_retry_after_falls_back_to_the_back_off(chat_server, tmp_path, retry_after):
    limit = make_error(429, Retry_After=retry_after)
    server = chat_server(lambda body, count: limit if count == 0 else echo(body, count))
    assert make_client(server, tmp_path).ask_all(["a"])[0].text == "re: a"


def test_refused_sampling_parameters_are_dropped_from_then_on(chat_server, tmp_path):
    """With the messages of OpenAI's reasoning models: one refusal for each request in flight."""
    refusals = {
        "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "temperature": "Unsupported value: 'temperature' does not support 0.0 with this model.",
    }

    def behave(body, count):
        wrong = next((name for name in refusals if name in body), None)
        return (400, {}, json.dumps({"error": {"message": refusals[wrong]}})) if wrong else echo(body, count)

    server = chat_server(behave)
    llm = make_client(server, tmp_path, concurrency=1)
    answers = llm.ask_all(["a", "b"], temperature=0.0, max_tokens=5, top_p=0.5)
    assert [answer.text for answer in answers] == ["re: a", "re: b"]
    assert len(server.bodies) == 3  # the second question was sent without them
    for body in server.bodies[1:]:
        assert {name: body[name] for name in body.keys() - {"model", "messages"}} == {
            "max_completion_tokens": 5, "top_p": 0.5
        }  # fmt: skip
    assert (llm.usage.refused, llm.ask_all(["a"], temperature=0.0, max_tokens=5, top_p=0.5)) == (0, answers[:1])


@pytest.mark.parametrize("headers", [{"Retry_After": "3600"}, {"x_should_retry": "false"}])
def test_a_quota_is_not_waited_for(chat_server, tmp_path, headers):
    server = chat_server(lambda body, count: make_error(429, **headers))
    with refuses("llm.no-answer", server.url, "after 0 retries"):
        make_client(server, tmp_path).ask_all(["a"])
    assert len(server.bodies) == 1


def test_requests_in_flight_stay_within_the_concurrency(chat_server, tmp_path):
    def slow(body, count):
        time.sleep(0.02)
        return echo(body, count)

    server = chat_server(slow)
    make_client(server, tmp_path, concurrency=3).ask_all([str(i) for i in range(12)])
    assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "llm.rejected-key"),
        (403, "llm.rejected-key"),
        (404, "llm.unknown-model"),
        (500, "llm.no-answer"),
        (429, "llm.no-answer"),
    ],
)
def test_fatal_error_hides_the_key_and_keeps_the_answers(chat_server, tmp_path, status, code):
    def behave(body, count):
        content = json.dumps({"error": {"message": f"wrong key {KEY}"}})
        return echo(body, count) if body["messages"][0]["content"] == "good" else (status, {}, content)

    server = chat_server(behave)
    with refuses(code, server.url, "***") as fatal:
        make_client(server, tmp_path, concurrency=1, max_retries=1).ask_all(["good", "bad"])
    assert KEY not in str(fatal.value)
    num_requests = len(server.bodies)
    assert make_client(server, tmp_path).ask_all(["good"])[0].text == "re: good"
    assert len(server.bodies) == num_requests


def test_a_run_that_stops_reports_its_cost(chat_server, tmp_path, capsys):
    server = chat_server(lambda body, count: echo(body, count) if count < 2 else make_error(401))
    with refuses("llm.rejected-key", "API_KEY"):
        make_client(server, tmp_path, concurrency=1).ask_all(["a", "b", "c"], label="judge")
    assert "judge: stopped after 3 asked, 0 from the cache, 20 + 4 tokens" in capsys.readouterr().err


def test_an_answer_that_takes_too_long_is_requested_again(chat_server, tmp_path):
    server = chat_server(lambda body, count: time.sleep(1.0 if count == 0 else 0.0) or echo(body, count))
    assert make_client(server, tmp_path, timeout=0.5).ask_all(["a"])[0].text == "re: a"
    assert len(server.bodies) >= 2


def test_an_unreachable_server_is_an_error_with_its_address(chat_server, tmp_path):
    llm = LLM(Endpoint("http://127.0.0.1:9/v1", "tiny"), tmp_path, max_retries=0)
    with refuses("llm.no-answer", "127.0.0.1:9"):
        llm.ask_all(["a"])


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "\udcff",  # a byte that is not UTF-8
        "<html>",
        "{}",
        '{"choices": []}',
        '{"choices": [{"index": 0, "message": null}]}',
        '{"choices": [{"index": 0, "message": {"content": ["x"]}}]}',
    ],
)
def test_a_reply_that_is_not_a_completion_is_retried_and_named(chat_server, tmp_path, no_back_off, content):
    headers = {"Content-Type": "text/html"} if content == "<html>" else {}
    server = chat_server(lambda body, count: (200, headers, content) if count < 2 else echo(body, count))
    assert make_client(server, tmp_path, concurrency=1).ask_all(["a"])[0].text == "re: a"
    broken = chat_server(lambda body, count: (200, headers, content))
    with refuses("llm.no-answer", f"{broken.url} (tiny)", "after 1 retries"):
        make_client(broken, tmp_path / "other", max_retries=1).ask_all(["a"])
    assert len(broken.bodies) == 2


def refuse_long(body, count):
    return make_error(400) if body["messages"][0]["content"].startswith("long") else echo(body, count)


def test_refused_requests_give_empty_answers_and_are_retried(chat_server, tmp_path):
    server = chat_server(refuse_long)
    prompts = [f"good {i}" for i in range(5)] + [f"long {i}" for i in range(25)] + [f"good {i}" for i in range(5, 8)]
    first = make_client(server, tmp_path, concurrency=4)
    answers = first.ask_all(prompts)
    assert [answer.text for answer in answers] == [f"re: {p}" if p.startswith("good") else "" for p in prompts]
    assert (first.usage.refused, "400" in answers[10].error) == (25, True)
    num_requests = len(server.bodies)
    server.behave = echo  # the server now accepts longer ones
    answers = make_client(server, tmp_path).ask_all(prompts)
    assert [answer.text for answer in answers] == [f"re: {p}" for p in prompts]
    assert len(server.bodies) == num_requests + 25


@pytest.mark.parametrize("prompts", [1, 30])
def test_server_refusing_everything_stops_run_and_is_not_cached(chat_server, tmp_path, prompts):
    server = chat_server(lambda body, count: make_error(400))
    with refuses("llm.refused-everything", server.url, "Error code: 400"):
        make_client(server, tmp_path, concurrency=1).ask_all(list(map(str, range(prompts))))
    assert len(server.bodies) == min(prompts, UNANSWERED_IN_A_ROW) + 1
    assert not list(tmp_path.rglob("*.json"))
    server.behave = echo  # the server is fixed
    assert make_client(server, tmp_path).ask_all(["0"])[0].text == "re: 0"


def fail_bad(body, count):
    return make_error(500) if body["messages"][0]["content"].startswith("bad") else echo(body, count)


def test_failing_question_is_skipped_named_and_retried_next_run(chat_server, tmp_path, no_back_off):
    server = chat_server(fail_bad)
    prompts = [*map(str, range(20)), "bad", *map(str, range(20, 39)), [{"role": "user", "content": "bad too"}]]
    llm = make_client(server, tmp_path, max_retries=2, most_failed=0.05)
    answers = llm.ask_all(prompts)
    good = [f"re: {n}" for n in range(39)]
    assert [answer.text for answer in answers] == [*good[:20], "", *good[20:], ""]
    for answer in (answers[20], answers[40]):
        assert isinstance(answer, NoAnswer)
        assert answer.status == 500
        assert "gave no answer after 2 retries: InternalServerError: Error code: 500" in answer.error
    assert {str(prompt) for prompt, _ in llm.failures.values()} == {"bad", str(prompts[-1])}
    num_requests = len(server.bodies)
    assert isinstance(llm.ask_all(["bad"])[0], NoAnswer)  # the failure is remembered
    assert len(server.bodies) == num_requests
    assert "2 without an answer" in str(llm.usage)
    server.behave = echo
    assert [answer.text for answer in make_client(server, tmp_path).ask_all(prompts)][20] == "re: bad"
    assert len(server.bodies) == num_requests + 2


def test_more_failures_than_allowed_stop_the_run(chat_server, tmp_path, no_back_off):
    server = chat_server(fail_bad)
    llm = make_client(server, tmp_path, concurrency=1, max_retries=1, most_failed=0.05)
    llm.ask_all(list("abcdefghijklmnopqrst") * 2)  # questions of an earlier call count
    with refuses("llm.no-answer", "4 of 60", "0.05"):
        llm.ask_all([*map(str, range(16)), "bad 1", "bad 2", "bad 3", "bad 4"])
    assert len(llm.failures) == 4
    with refuses("llm.no-answer", "after 1 retries"):
        make_client(server, tmp_path, max_retries=1).ask_all(["bad"])


def test_a_dead_server_stops_the_run_whatever_share_may_fail(chat_server, tmp_path, no_back_off):
    server = chat_server(lambda body, count: echo(body, count) if count < 5 else make_error(500))
    with refuses("llm.no-answer", "after 1 retries"):
        make_client(server, tmp_path, concurrency=1, max_retries=1, most_failed=0.9).ask_all(list(map(str, range(100))))
    assert len(server.bodies) == 5 + 2 * (UNANSWERED_IN_A_ROW + 1)  # including the plain question


def test_progress_and_rate_limits_are_printed_without_a_terminal(chat_server, tmp_path, monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr("convrec.base.progress.SECONDS", 0.3)
    monkeypatch.setattr(sys, "stderr", stderr)

    def now():  # stands still in the printing thread once the client knows the limit
        stands_still = llm._not_before and threading.current_thread() is not threading.main_thread()
        return llm._not_before - 1.9 if stands_still else time.monotonic()

    def behave(body, count):
        deadline = time.monotonic() + 20
        while count == 4 and stderr.getvalue().count("; waits") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return make_error(429, Retry_After="1.9") if count == 3 else echo(body, count)

    monkeypatch.setattr("convrec.llm.client.time", SimpleNamespace(monotonic=now))
    llm = make_client(chat_server(behave), tmp_path, concurrency=1)
    llm.ask_all(list("abcde"), label="teacher")
    lines = stderr.getvalue().splitlines()
    # three answers of ten prompt tokens, then the limit
    note = ", 4 asked, 0 from the cache, 30 + 6 tokens, 1 rate limits; waits 2 s (rate limit)]"
    first, second, *_ = [line for line in lines if "; waits" in line]
    for line in (first, second):
        assert re.match(r"teacher:  60% 3/5 \[\d\d:\d\d<\d\d:\d\d, ", line)
        assert line.endswith(note)
    assert lines[-1].startswith("teacher: 100% 5/5 [")


def test_only_the_header_has_the_key(chat_server, tmp_path):
    server = chat_server(echo)
    llm = make_client(server, tmp_path)
    llm.ask_all(["a"])
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(llm.endpoint)
    assert all(KEY not in path.read_text() for path in tmp_path.rglob("*.json"))


def test_the_cache_tolerates_damage_and_keeps_requests_apart(tmp_path):
    cache = AnswerCache(tmp_path)
    first, second = ({"model": "m", "messages": [{"content": text}], "sampling": {}} for text in ("a", "b"))
    cache.put(first, Answer("first"))
    cache.put(first, Answer("again"))
    assert cache.get(first) == Answer("again")
    assert cache.get(second) is None
    for damage in ("", "{", "[]", '{"answer": {"txt": 1}}'):
        cache.path(first).write_text(damage)
        assert cache.get(first) is None
    cache.put(first, Answer("\ud83d odd"))  # half a surrogate pair
    assert cache.get(first) == Answer("\ud83d odd")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [cache.path(first).name]


def test_endpoints_come_from_the_environment(monkeypatch):
    for name in ("LLM", "JUDGE"):
        for part in ("BASE_URL", "MODEL", "API_KEY"):
            monkeypatch.delenv(f"{name}_{part}", raising=False)
    with refuses("llm.missing-url", "LLM_BASE_URL or JUDGE_BASE_URL"):
        endpoint("judge")
    monkeypatch.setenv("LLM_BASE_URL", "https://one.example/v1")
    with refuses("llm.missing-model", "LLM_MODEL", "https://one.example/v1"):
        endpoint("judge")
    monkeypatch.setenv("LLM_MODEL", "big")
    monkeypatch.setenv("LLM_API_KEY", KEY)
    assert endpoint("judge") == Endpoint("https://one.example/v1", "big", KEY)
    monkeypatch.setenv("JUDGE_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("JUDGE_MODEL", "small")
    assert endpoint("judge") == Endpoint("http://127.0.0.1:1/v1", "small", "")  # the key stays with its host
    for bad in ("127.0.0.1:1", "ftp://x", "http://"):
        monkeypatch.setenv("JUDGE_BASE_URL", bad)
        with refuses("llm.invalid-url", "JUDGE_BASE_URL"):
            endpoint("judge")
    monkeypatch.setenv("JUDGE_BASE_URL", "http://me:hunter2@host/v1")
    with refuses("llm.key-in-url", "JUDGE_API_KEY") as error:
        endpoint("judge")
    assert "hunter2" not in str(error.value)
