"""Two models behind one service, each for its share of the users, and what the users of each did.

    convrec serve --model now=outputs/demo/sft --model next=outputs/demo/rank_grpo \\
        --catalog outputs/demo/data/catalog.parquet --feedback
    python docs/examples/two_models.py ann "A slow science fiction film"     one list
    python docs/examples/two_models.py                                       clicks by model

A user has one model as long as EXPERIMENT and SHARES stay. A share that grows takes users over and gives none away.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx

EXPERIMENT = "2026-11"  # another one divides the users anew
SHARES = {"next": 0.1, "now": 0.9}
STATE = Path("outputs/serve")


def assign_model(user: str, shares: dict[str, float] = SHARES) -> str:
    """The user's model. A hash, not a draw: no table of users is kept, and every process agrees."""
    digest = hashlib.sha256(f"{EXPERIMENT}:{user}".encode()).digest()
    place, edge = int.from_bytes(digest[:8]) / 2**64, 0.0
    for name, share in shares.items():
        edge += share
        if place < edge:
            return name
    return name


def recommend(service: httpx.Client, user: str, said: str, shares: dict[str, float] = SHARES) -> dict:
    asked = {"model": assign_model(user, shares), "conversation": said, "k": 5}
    return service.post("/v1/recommendations", json=asked).raise_for_status().json()


def outcome(files: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Model -> (lists, lists of which something was clicked)."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    clicked = {line["list_id"] for line in lines if line.get("event") == "click"}
    lists = [(line["model"], line["list_id"]) for line in lines if "items" in line]
    shown, liked = Counter(name for name, _ in lists), Counter(name for name, list_id in lists if list_id in clicked)
    return {name: (shown[name], liked[name]) for name in shown}


if __name__ == "__main__":
    if sys.argv[1:]:
        with httpx.Client(base_url="http://127.0.0.1:8000", timeout=60) as client:
            user, said = sys.argv[1:]
            print(json.dumps(recommend(client, user, said), indent=2))
    else:
        for name, (shown, clicked) in outcome(sorted(STATE.glob("feedback-*.jsonl"))).items():
            print(f"{name}: {clicked} of {shown} lists clicked, {clicked / shown:.1%}")
