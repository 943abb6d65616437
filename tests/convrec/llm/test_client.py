"""The client against a real HTTP server: what is sent, retried, paid for, kept and hidden."""

import io
import json
import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from openai._constants import INITIAL_RETRY_DELAY, MAX_RETRY_DELAY

from convrec.base.errors import UserError
from convrec.llm import LLM, Answer, AnswerCache, Endpoint, NoAnswer, endpoint
from convrec.llm.client import MAX_RETRIES, UNANSWERED_IN_A_ROW, back_off

KEY = "sk-very-secret"


def client(server, cache, **settings):
    return LLM(Endpoint(server.url, "tiny", KEY), cache, **settings)


def echo(body, count):
    return "re: " + body["messages"][-1]["content"]


def error(status, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps({"error": {"message": "no"}})


def test_answers_come_in_order_and_are_paid_for_once(chat_server, tmp_path):
    server = chat_server(echo)
    first = client(server, tmp_path)
    prompts = ["a", "b", "a", [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}]]
    answers = first.ask_all(prompts, temperature=0.0, max_tokens=5)
    assert [answer.text for answer in answers] == ["re: a", "re: b", "re: a", "re: c"]
    assert len(server.bodies) == 3  # `a` is one request
    assert server.bodies[0]["temperature"] == 0.0
    assert server.bodies[0]["max_tokens"] == 5
    # 3 answers of 10 + 2 tokens
    assert (first.usage.asked, first.usage.cached, first.usage.prompt_tokens) == (3, 1, 30)

    second = client(server, tmp_path)
    assert second.ask_all(prompts, temperature=0.0, max_tokens=5) == answers
    assert len(server.bodies) == 3
    assert (second.usage.asked, second.usage.cached, second.usage.prompt_tokens) == (0, 4, 0)
    second.ask_all(["a"], temperature=1.0, max_tokens=5)  # other sampling, another answer
    assert len(server.bodies) == 4


def test_rate_limits_errors_and_lost_connections_are_retried(chat_server, tmp_path):
    def behave(body, count):
        return {0: error(429, Retry_After="0.2"), 1: error(500), 2: error(503)}.get(count) or echo(body, count)

    server = chat_server(behave)
    llm = client(server, tmp_path, concurrency=1)
    start = time.monotonic()
    assert [answer.text for answer in llm.ask_all(["a"])] == ["re: a"]
    assert time.monotonic() - start >= 0.2
    assert len(server.bodies) == 4
    assert llm.usage.rate_limited == 1


def test_parameters_that_the_library_does_not_know_are_sent_too(chat_server, tmp_path):
    server = chat_server(echo)
    sampling = {"temperature": 0.5, "top_k": 20, "extra_body": {"min_p": 0.1}}
    client(server, tmp_path).ask_all(["a"], **sampling)
    sent = server.bodies[0]
    assert (sent["temperature"], sent["top_k"], sent["min_p"]) == (0.5, 20, 0.1)
    assert "extra_body" not in sent


@pytest.mark.parametrize(
    "headers",
    [{"Retry_After": "0.6"}, {}, {"Retry_After": "0.01"}],
    ids=["as the server says", "for the back-off", "for the back-off at least"],
)
def test_a_limit_holds_every_request(chat_server, tmp_path, headers):
    times = {}

    def behave(body, count):
        name = body["messages"][0]["content"]
        times.setdefault(name, time.monotonic())
        if name == "limited" and count < 2:
            return error(429, **headers)
        deadline = time.monotonic() + 20
        while name == "other" and not llm._not_before and time.monotonic() < deadline:
            time.sleep(0.01)
        return echo(body, count)

    # `other` is out already; its worker is free within the hold and must not send `later` before that is over
    llm = client(chat_server(behave), tmp_path, concurrency=2)
    llm.ask_all(["limited", "other", "later"])
    assert times["later"] - times["limited"] >= 0.45


def test_retries_outlast_a_limit_a_minute():
    library = [min(INITIAL_RETRY_DELAY * 2**retry, MAX_RETRY_DELAY) for retry in range(MAX_RETRIES)]
    assert 0.75 * sum(library) > 60  # less up to a quarter
    assert sum(map(back_off, range(8))) > 60
    assert back_off(1000) <= 30


@pytest.mark.parametrize("said", ["inf", "soon", "-1", "Wed, 40 Oct 99999 07:28:00 GMT"])
def test_a_wait_that_is_none_is_the_back_off(chat_server, tmp_path, said):
    server = chat_server(lambda body, count: error(429, Retry_After=said) if count == 0 else echo(body, count))
    assert client(server, tmp_path).ask_all(["a"])[0].text == "re: a"


def test_refused_sampling_parameters_are_dropped_from_then_on(chat_server, tmp_path):
    """OpenAI's models that reason, in their words: one refusal for each request that is under way."""
    refusals = {
        "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "temperature": "Unsupported value: 'temperature' does not support 0.0 with this model.",
    }

    def behave(body, count):
        wrong = next((name for name in refusals if name in body), None)
        return (400, {}, json.dumps({"error": {"message": refusals[wrong]}})) if wrong else echo(body, count)

    server = chat_server(behave)
    llm = client(server, tmp_path, concurrency=1)
    answers = llm.ask_all(["a", "b"], temperature=0.0, max_tokens=5, top_p=0.5)
    assert [answer.text for answer in answers] == ["re: a", "re: b"]
    assert len(server.bodies) == 3  # remembered
    for body in server.bodies[1:]:
        assert {name: body[name] for name in body.keys() - {"model", "messages"}} == {
            "max_completion_tokens": 5, "top_p": 0.5
        }  # fmt: skip
    assert (llm.usage.refused, llm.ask_all(["a"], temperature=0.0, max_tokens=5, top_p=0.5)) == (0, answers[:1])


@pytest.mark.parametrize("headers", [{"Retry_After": "3600"}, {"x_should_retry": "false"}])
def test_a_quota_is_not_waited_for(chat_server, tmp_path, headers):
    server = chat_server(lambda body, count: error(429, **headers))
    with pytest.raises(UserError, match="after 0 retries"):
        client(server, tmp_path).ask_all(["a"])
    assert len(server.bodies) == 1


def test_no_more_in_flight_than_asked_for(chat_server, tmp_path):
    def slow(body, count):
        time.sleep(0.02)
        return echo(body, count)

    server = chat_server(slow)
    client(server, tmp_path, concurrency=3).ask_all([str(i) for i in range(12)])
    assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "API_KEY"), (403, "API_KEY"), (404, "model"), (500, "run again"), (429, "run again")],
)
def test_fatal_error_hides_the_key_and_keeps_the_answers(chat_server, tmp_path, status, says):
    def behave(body, count):
        content = json.dumps({"error": {"message": f"wrong key {KEY}"}})
        return echo(body, count) if body["messages"][0]["content"] == "good" else (status, {}, content)

    server = chat_server(behave)
    with pytest.raises(UserError, match=says) as caught:
        client(server, tmp_path, concurrency=1, max_retries=1).ask_all(["good", "bad"])
    assert KEY not in str(caught.value)
    assert "***" in str(caught.value)
    asked = len(server.bodies)
    assert client(server, tmp_path).ask_all(["good"])[0].text == "re: good"
    assert len(server.bodies) == asked


def test_a_run_that_stops_says_what_was_paid(chat_server, tmp_path, capsys):
    server = chat_server(lambda body, count: echo(body, count) if count < 2 else error(401))
    with pytest.raises(UserError, match="API_KEY"):
        client(server, tmp_path, concurrency=1).ask_all(["a", "b", "c"], label="judge")
    assert "judge: stopped after 3 asked, 0 from the cache, 20 + 4 tokens" in capsys.readouterr().err


def test_an_answer_that_takes_too_long_is_asked_for_again(chat_server, tmp_path):
    server = chat_server(lambda body, count: time.sleep(1.0 if count == 0 else 0.0) or echo(body, count))
    assert client(server, tmp_path, timeout=0.5).ask_all(["a"])[0].text == "re: a"
    assert len(server.bodies) >= 2


def test_an_unreachable_server_is_an_error_with_its_address(chat_server, tmp_path):
    llm = LLM(Endpoint("http://127.0.0.1:9/v1", "tiny"), tmp_path, max_retries=0)
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9"):
        llm.ask_all(["a"])


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "\udcff",  # a byte that is no UTF-8
        "<html>",
        "{}",
        '{"choices": []}',
        '{"choices": [{"index": 0, "message": null}]}',
        '{"choices": [{"index": 0, "message": {"content": ["x"]}}]}',
    ],
)
def test_a_reply_that_is_no_completion_is_retried_and_then_named(chat_server, tmp_path, no_back_off, content):
    headers = {"Content-Type": "text/html"} if content == "<html>" else {}
    server = chat_server(lambda body, count: (200, headers, content) if count < 2 else echo(body, count))
    assert client(server, tmp_path, concurrency=1).ask_all(["a"])[0].text == "re: a"
    broken = chat_server(lambda body, count: (200, headers, content))
    with pytest.raises(UserError, match=rf"{broken.url} \(tiny\) gave no answer after 1 retries"):
        client(broken, tmp_path / "other", max_retries=1).ask_all(["a"])
    assert len(broken.bodies) == 2


def refuse_long(body, count):
    return error(400) if body["messages"][0]["content"].startswith("long") else echo(body, count)


def test_refused_requests_give_empty_answers_and_are_retried(chat_server, tmp_path):
    server = chat_server(refuse_long)
    prompts = [f"good {i}" for i in range(5)] + [f"long {i}" for i in range(25)] + [f"good {i}" for i in range(5, 8)]
    first = client(server, tmp_path, concurrency=4)
    answers = first.ask_all(prompts)
    assert [answer.text for answer in answers] == [f"re: {p}" if p.startswith("good") else "" for p in prompts]
    assert (first.usage.refused, "400" in answers[10].error) == (25, True)
    asked = len(server.bodies)
    server.behave = echo  # takes longer ones now
    answers = client(server, tmp_path).ask_all(prompts)
    assert ([answer.text for answer in answers], len(server.bodies)) == ([f"re: {p}" for p in prompts], asked + 25)


@pytest.mark.parametrize("prompts", [1, 30])
def test_server_refusing_everything_stops_run_and_is_not_cached(chat_server, tmp_path, prompts):
    server = chat_server(lambda body, count: error(400))
    with pytest.raises(UserError, match="and a plain question"):
        client(server, tmp_path, concurrency=1).ask_all(list(map(str, range(prompts))))
    assert len(server.bodies) == min(prompts, UNANSWERED_IN_A_ROW) + 1
    assert not list(tmp_path.rglob("*.json"))
    server.behave = echo  # fixed
    assert client(server, tmp_path).ask_all(["0"])[0].text == "re: 0"


def poisoned(body, count):
    return error(500) if body["messages"][0]["content"].startswith("bad") else echo(body, count)


def test_failing_question_is_skipped_named_and_retried_next_run(chat_server, tmp_path, no_back_off):
    server = chat_server(poisoned)
    prompts = [*map(str, range(20)), "bad", *map(str, range(20, 39)), [{"role": "user", "content": "bad too"}]]
    llm = client(server, tmp_path, max_retries=2, most_failed=0.05)
    answers = llm.ask_all(prompts)
    good = [f"re: {n}" for n in range(39)]
    assert [answer.text for answer in answers] == [*good[:20], "", *good[20:], ""]
    for answer in (answers[20], answers[40]):
        assert isinstance(answer, NoAnswer)
        assert answer.status == 500
        assert "gave no answer after 2 retries: InternalServerError: Error code: 500" in answer.error
    assert {str(prompt) for prompt, _ in llm.failures.values()} == {"bad", str(prompts[-1])}
    asked = len(server.bodies)
    assert isinstance(llm.ask_all(["bad"])[0], NoAnswer)  # known by now
    assert len(server.bodies) == asked
    assert "2 without an answer" in str(llm.usage)
    server.behave = echo
    asked = len(server.bodies)
    assert [answer.text for answer in client(server, tmp_path).ask_all(prompts)][20] == "re: bad"
    assert len(server.bodies) == asked + 2


def test_more_failures_than_may_be_stop_the_run(chat_server, tmp_path, no_back_off):
    server = chat_server(poisoned)
    llm = client(server, tmp_path, concurrency=1, max_retries=1, most_failed=0.05)
    llm.ask_all(list("abcdefghijklmnopqrst") * 2)  # questions of an earlier call count
    with pytest.raises(
        UserError, match=r"4 of 60 questions have no answer, more than the share of 0\.05 that may fail: "
    ):
        llm.ask_all([*map(str, range(16)), "bad 1", "bad 2", "bad 3", "bad 4"])
    assert len(llm.failures) == 4
    with pytest.raises(UserError, match=r"gave no answer after 1 retries: .*run again"):
        client(server, tmp_path, max_retries=1).ask_all(["bad"])


def test_a_server_that_is_gone_stops_the_run_whatever_may_fail(chat_server, tmp_path, no_back_off):
    server = chat_server(lambda body, count: echo(body, count) if count < 5 else error(500))
    with pytest.raises(UserError, match="gave no answer after 1 retries"):
        client(server, tmp_path, concurrency=1, max_retries=1, most_failed=0.9).ask_all(list(map(str, range(100))))
    assert len(server.bodies) == 5 + 2 * (UNANSWERED_IN_A_ROW + 1)  # and the plain question


def test_progress_and_rate_limits_are_told_without_a_terminal(chat_server, tmp_path, monkeypatch):
    monkeypatch.setattr("convrec.base.progress.SECONDS", 0.3)
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())

    def now():  # in the thread that tells it stands still when the limit is heard of
        stands_still = llm._not_before and threading.current_thread() is not threading.main_thread()
        return llm._not_before - 1.9 if stands_still else time.monotonic()

    def behave(body, count):
        deadline = time.monotonic() + 20
        while count == 4 and told.getvalue().count("; waits") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return error(429, Retry_After="1.9") if count == 3 else echo(body, count)

    monkeypatch.setattr("convrec.llm.client.time", SimpleNamespace(monotonic=now))
    llm = client(chat_server(behave), tmp_path, concurrency=1)
    llm.ask_all(list("abcde"), label="teacher")
    lines = told.getvalue().splitlines()
    # three answers of ten prompt tokens, then the limit
    said = ", 4 asked, 0 from the cache, 30 + 6 tokens, 1 rate limits; waits 2 s, as the server asked]"
    first, second, *_ = [line for line in lines if "; waits" in line]
    for line in (first, second):
        assert re.match(r"teacher:  60% 3/5 \[\d\d:\d\d<\d\d:\d\d, ", line)
        assert line.endswith(said)
    assert lines[-1].startswith("teacher: 100% 5/5 [")


def test_the_key_travels_in_the_header_only(chat_server, tmp_path):
    server = chat_server(echo)
    llm = client(server, tmp_path)
    llm.ask_all(["a"])
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(llm.endpoint)
    assert all(KEY not in path.read_text() for path in tmp_path.rglob("*.json"))


def test_the_cache_forgives_damage_and_keeps_requests_apart(tmp_path):
    cache = AnswerCache(tmp_path)
    one, other = ({"model": "m", "messages": [{"content": text}], "sampling": {}} for text in ("a", "b"))
    cache.put(one, Answer("first"))
    cache.put(one, Answer("again"))
    assert cache.get(one) == Answer("again")
    assert cache.get(other) is None
    for damage in ("", "{", "[]", '{"answer": {"txt": 1}}'):
        cache.path(one).write_text(damage)
        assert cache.get(one) is None
    cache.put(one, Answer("\ud83d odd"))  # half a surrogate pair
    assert cache.get(one) == Answer("\ud83d odd")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [cache.path(one).name]


def test_endpoints_come_from_the_environment(monkeypatch):
    for name in ("LLM", "JUDGE"):
        for part in ("BASE_URL", "MODEL", "API_KEY"):
            monkeypatch.delenv(f"{name}_{part}", raising=False)
    with pytest.raises(UserError, match="LLM_BASE_URL or JUDGE_BASE_URL"):
        endpoint("judge")
    monkeypatch.setenv("LLM_BASE_URL", "https://one.example/v1")
    with pytest.raises(UserError, match="LLM_MODEL"):
        endpoint("judge")
    monkeypatch.setenv("LLM_MODEL", "big")
    monkeypatch.setenv("LLM_API_KEY", KEY)
    assert endpoint("judge") == Endpoint("https://one.example/v1", "big", KEY)
    monkeypatch.setenv("JUDGE_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("JUDGE_MODEL", "small")
    assert endpoint("judge") == Endpoint("http://127.0.0.1:1/v1", "small", "")  # the key stays with its host
    for bad in ("127.0.0.1:1", "ftp://x", "http://"):
        monkeypatch.setenv("JUDGE_BASE_URL", bad)
        with pytest.raises(UserError, match="JUDGE_BASE_URL"):
            endpoint("judge")
    monkeypatch.setenv("JUDGE_BASE_URL", "http://me:hunter2@host/v1")
    with pytest.raises(UserError, match="JUDGE_API_KEY") as caught:
        endpoint("judge")
    assert "hunter2" not in str(caught.value)
