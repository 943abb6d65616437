"""docs/examples/two_models.py, against the service's application."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "examples"))
import two_models

USERS = [f"user-{number}" for number in range(2000)]


def test_users_keep_their_model_as_its_share_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    tenth = {user: two_models.assign_model(user, {"next": 0.1, "now": 0.9}) for user in USERS}
    assert tenth == {user: two_models.assign_model(user) for user in reversed(USERS)}  # whoever came before
    assert [user for user in USERS[:20] if tenth[user] == "next"] == ["user-10", "user-15", "user-16"]  # on any machine
    half = {user: two_models.assign_model(user, {"next": 0.5, "now": 0.5}) for user in USERS}
    for split, share in ((tenth, 0.1), (half, 0.5)):
        taken = sum(name == "next" for name in split.values()) / len(USERS)
        assert taken == pytest.approx(share, abs=0.03)  # some three standard errors
    assert all(half[user] == "next" for user in USERS if tenth[user] == "next")
    monkeypatch.setattr(two_models, "EXPERIMENT", "another")
    both = sum(two_models.assign_model(user, {"next": 0.5, "now": 0.5}) == half[user] for user in USERS)
    assert both / len(USERS) == pytest.approx(0.5, abs=0.04)  # divided anew


def test_what_users_of_each_model_click_is_told_apart(service: Callable[..., Any], tmp_path: Path) -> None:
    shares = {"films": 0.5, "other": 0.5}
    models = [two_models.assign_model(user, shares) for user in USERS[:8]]
    assert {*models} == {*shares}
    with TestClient(service(feedback=str(tmp_path)), base_url="http://localhost") as client:
        answers = [two_models.recommend(client, user, "a film, please", shares) for user in USERS[:8]]
    assert [answer["model"] for answer in answers] == models
    counts = {model: (models.count(model), 0) for model in shares}
    assert two_models.outcome(tmp_path.glob("feedback-*.jsonl")) == counts
    lists = [{"list_id": name, "model": name[0], "items": []} for name in ("a1", "a2", "a3", "b1")]
    events = [{"list_id": name, "event": "click"} for name in ("a1", "a1", "a3")] + [{"list_id": "b1", "event": "like"}]
    for number, records in enumerate((events, lists)):
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert two_models.outcome([tmp_path / "0.jsonl", tmp_path / "1.jsonl"]) == {"a": (3, 2), "b": (1, 0)}
