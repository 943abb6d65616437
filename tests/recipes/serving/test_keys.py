"""Several keys, each with a role and a limit, from a file that is read again when it changes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from recipes.serving import keys as module
from recipes.serving.keys import ROLES, Keys, read_keys
from recipes.serving.schema import read_service_key
from tests.recipes.serving.test_http import error_of
from tests.user_errors import refuses

ASK = {"conversation": "a film, please"}
OWN = "o" * 32


def entry(role: str, **more: Any) -> dict[str, Any]:
    return {"name": f"the-{role}", "role": role, "key": role[0] * 32} | more


def write(file: Path, *entries: Any) -> None:
    file.write_text(yaml.safe_dump(list(entries)))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    write(tmp_path / "keys.yaml", *map(entry, ROLES))
    return tmp_path / "keys.yaml"


@pytest.fixture
def client(service: Callable[..., Any], file: Path) -> TestClient:
    return TestClient(service(OWN, loopback=False, keys=str(file)), raise_server_exceptions=False)


def with_key(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {role[0] * 32}"}


def test_a_role_may_do_what_it_says_and_no_more(client: TestClient) -> None:
    item = {"items": [{"item_id": "n", "title": "Dune", "year": 2021}]}
    calls = {
        "read": [("POST", "/v1/recommendations", ASK), ("GET", "/v1/catalog/items", None), ("GET", "/metrics", None)],
        "feedback": [("POST", "/v1/feedback", {"list_id": "list-" + "0" * 32, "item_id": "1", "event": "click"})],
        "admin": [
            ("PUT", "/v1/catalog/items", item),
            ("PATCH", "/v1/catalog/items", item),
            ("DELETE", "/v1/catalog/items?item_id=n", None),
        ],
    }
    for needed, requests in calls.items():
        for role in ROLES:
            for method, path, body in requests:
                answer = client.request(method, path, json=body, headers=with_key(role))
                is_enough = ROLES.index(role) >= ROLES.index(needed)  # type: ignore[arg-type]
                assert (answer.status_code != 403) is is_enough, (role, method, path)
                if not is_enough:
                    assert error_of(answer, 403)["message"].endswith(f"the role {needed}")
    assert client.put("/v1/catalog/items", json=item, headers=with_key("own")).status_code == 200


def test_no_key_and_a_wrong_key_are_different_sentences(client: TestClient) -> None:
    assert error_of(client.get("/v1/models"), 401)["message"].startswith("no key: ")
    wrong = client.get("/v1/models", headers={"Authorization": "Bearer " + "x" * 32})
    assert error_of(wrong, 401)["message"].startswith("wrong key: ")


def test_key_file_is_reloaded_and_a_broken_one_keeps_the_keys(
    client: TestClient, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.get("/v1/models", headers=with_key("read")).status_code == 200
    write(file, entry("admin"))
    assert client.get("/v1/models", headers=with_key("read")).status_code == 401
    assert client.get("/v1/models", headers=with_key("admin")).status_code == 200
    file.write_text("- name: half\n")
    for _ in range(3):
        assert client.get("/v1/models", headers=with_key("admin")).status_code == 200
    assert [record.message.count(f"--keys {file}") for record in caplog.records] == [1]
    file.unlink()
    assert client.get("/v1/models", headers=with_key("admin")).status_code == 200
    write(file, entry("read"))
    assert client.get("/v1/models", headers=with_key("read")).status_code == 200


def test_a_key_has_a_limit_of_its_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    write(file, entry("read", requests_per_minute=3), entry("admin"))
    keys = Keys(None, file)

    def statuses(role: str, count: int) -> list[int | str]:
        answers: list[int | str] = []
        for _ in range(count):
            try:
                answers.append(keys.check(f"Bearer {role[0] * 32}", "GET", "/v1/models"))
            except module.Refused as refused:
                answers.append(refused.retry_after or 0)
        return answers

    assert statuses("read", 5) == ["the-read"] * 3 + [21, 21]  # a third of a minute for the next
    assert statuses("admin", 9) == ["the-admin"] * 9
    now += 20.0
    assert statuses("read", 2) == ["the-read", 21]
    now += 3600.0
    assert statuses("read", 4) == ["the-read"] * 3 + [21]


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        ("{", "serving.invalid-keys", ""),
        ("[]", "serving.invalid-keys", ""),
        ("a: b", "serving.invalid-keys", ""),
        ("- 3", "serving.invalid-keys", "entry 0: type: "),
        (yaml.safe_dump([entry("read") | {"role": "owner"}]), "serving.invalid-keys", "entry 0: role: "),
        (yaml.safe_dump([entry("read", key="short")]), "serving.invalid-keys", "entry 0: key: "),
        (
            yaml.safe_dump([entry("read", requests_per_minute=0)]),
            "serving.invalid-keys",
            "entry 0: requests_per_minute: ",
        ),
        (yaml.safe_dump([entry("read"), entry("read", name="other")]), "serving.duplicate-keys", ""),
    ],
)
def test_an_invalid_file_of_keys_is_refused_without_showing_a_key(
    tmp_path: Path, content: str, code: str, place: str
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(content)
    with refuses(code, f"--keys {file}: {place}") as error:
        read_keys(file)
    assert "r" * 16 not in str(error.value)
    with refuses("serving.unreadable-keys", tmp_path / "none.yaml"):
        read_keys(tmp_path / "none.yaml")


def test_a_file_of_keys_opens_the_service_as_the_variable_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.KEY_VARIABLE, raising=False)
    assert read_service_key(loopback=False, keys="keys.yaml") is None
    with refuses("serving.missing-key", "SERVE_API_KEY", "--keys"):
        read_service_key(loopback=False)
