"""Rollouts that ask: each turn is a row of the batch, lists are scored, questions get the reward of their list."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf

from convrec.data.chat import encode, render_prompt
from convrec.features.asking.feature import read_turns
from convrec.features.asking.maths import question_advantages
from convrec.features.asking.rollout import Dialogues
from convrec.features.asking.users import LABEL_WORDINGS
from convrec.features.responses import OPEN, TURN, Prompt, SampledResponse
from convrec.rank_grpo.credit import RankBatch
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from tests.convrec.rollout.fakes import FILMS, RolloutWorld, make_samples, tiny_tokenizer, to_plain

GENRES = {"Alien": ["horror"], "Heat": ["crime"], "Jaws": ["horror"]}
SETTINGS: dict[str, Any] = {"ask": ["genre", "decade"], "max_turns": 3, "ask_cost": 0.05, "num_items": 3}
ANSWERS = [wording.format(labels="crime").capitalize() for wording in LABEL_WORDINGS[::2]]

# For each prompt, the first rollout asks, the second lists at once, the third does both.
FIRST_TURNS = ["Which genre?", "Jaws (1975)\nHeat (1995)", "Which genre?\nHeat (1995)"]
AFTER_ANSWER = "Heat (1995)\nJaws (1975)"


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    films = [{"title": title, "year": year, "genres": GENRES[title]} for title, year in FILMS]
    pq.write_table(pa.Table.from_pylist(films), tmp_path / "catalog.parquet")
    return str(tmp_path / "catalog.parquet")


def write_turn(place: int, request: dict[str, Any]) -> str:
    """Write a turn of one of a prompt's three rollouts: after an answer it is a list."""
    prompt = tiny_tokenizer().decode(request["prompt_ids"])
    return AFTER_ANSWER if "SYSTEM: " in prompt else FIRST_TURNS[place % 3]


@pytest.fixture
def world(catalog: str, monkeypatch: pytest.MonkeyPatch) -> RolloutWorld:
    world = RolloutWorld(catalog, monkeypatch, response_length=60, catalog_file=catalog, **SETTINGS)
    world.write_text = write_turn
    return world


def put_rows(world: RolloutWorld) -> dict[str, dict[str, Any]]:
    """Return what the rollouts of the training samples put, by key."""
    world.run(samples=make_samples(is_validation=False))
    return {key.removeprefix("train/"): row for key, (_, row) in world.rows.items() if row}


def make_dialogues(catalog: str) -> Dialogues:
    settings = RankGRPOConfig(catalog_file=catalog, seed=0, max_prompt_length=300, **SETTINGS)
    return Dialogues(Run(settings, OmegaConf.create({"data": {}})), tiny_tokenizer())


def test_every_turn_is_a_row_and_only_lists_are_scored(world: RolloutWorld) -> None:
    rows = put_rows(world)
    assert set(rows) == {f"u{u}_{tail}" for u in range(3) for tail in ("0_0", "0_1", "1_0", "2_0")}
    for u in range(3):
        turns = [rows[f"u{u}_{tail}"] for tail in ("0_0", "0_1", "1_0", "2_0")]
        question, after, _, _ = turns
        (asked,) = to_plain(question["raw_prompt"])
        (prompted,) = to_plain(after["raw_prompt"])
        assert prompted["content"].startswith(asked["content"])
        new_lines = prompted["content"].removeprefix(asked["content"]).strip().split("\n")
        assert new_lines[0] == "SYSTEM: Which genre?"
        assert new_lines[1].removeprefix("USER: ").capitalize() in ANSWERS
        # the user's answer is in the prompt of the next turn, and not among the tokens of a response
        text = world.tokenizer.decode(to_plain(after["prompts"]), skip_special_tokens=True)
        assert "SYSTEM: Which genre?" in text
        assert set(to_plain(question["response_mask"])) == set(to_plain(after["response_mask"])) == {1}
        infos = [to_plain(row["extra_fields"])["reward_extra_info"] for row in turns]
        assert [info["relevance"] for info in infos] == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]
        # the score is at the last token; a question has the score of the list after it
        scores = [to_plain(row["rm_scores"])[-1] for row in turns]
        assert scores == pytest.approx([1, 1, 0.6309, 0], abs=1e-4)
        notes = [to_plain(row["extra_fields"])[TURN] for row in turns]
        assert [(note["turn"], note["asked"]) for note in notes] == [(0, 1), (1, 1), (0, 0), (0, 0)]
        assert [note["question"] for note in notes] == [True, False, False, False]
        assert notes[3]["malformed"]
    assert len(world.scored) == 3 * 3  # a list of each rollout, and no question


def test_malformed_turns_earn_nothing_scored_one_by_one(world: RolloutWorld) -> None:
    world.worker.config.reward.reward_manager.name = "naive"  # does not score groups
    rows = put_rows(world)
    infos = {key[-3:]: row["extra_fields"]["reward_extra_info"] for key, row in rows.items()}
    assert "score a group" not in world.calls
    assert infos["0_1"]["rank_returns"] == [1, 0, 0]
    assert infos["2_0"]["rank_returns"] == [0, 0, 0]
    assert infos["2_0"]["score"] == 0


def test_the_trainer_reads_turns_from_the_rollouts_rows(world: RolloutWorld) -> None:
    rows = sorted(put_rows(world).items())
    batch = RankBatch(
        prompts=[key.split("_")[0] for key, _ in rows],
        is_padding_B=torch.zeros(len(rows), dtype=torch.bool),
        extra_fields=[to_plain(row["extra_fields"]) for _, row in rows],
        responses_BT=torch.zeros(len(rows), 1, dtype=torch.int64),
        mask_BT=torch.ones(len(rows), 1, dtype=torch.int64),
    )
    turns = read_turns(batch)
    assert turns.gain_B[:4].tolist() == pytest.approx([1, 1, 0.6309, 0], abs=1e-4)
    advantages_B = question_advantages(turns, 0.05, norm_by_std=False)
    # the three rollouts have R = .95, .6309, 0; the question's advantage is .95 less their mean
    assert advantages_B[:4].tolist() == pytest.approx([0.95 - (0.95 + 0.6309) / 3, 0, 0, 0], abs=1e-4)
    assert len(set(turns.list_groups)) == 3 * 3
    assert torch.equal(turns.asked_B[:4], torch.tensor([1, 1, 0, 0]))


def test_the_next_turn_keeps_the_server_gets_a_new_seed_and_fits(world: RolloutWorld) -> None:
    worker = world.worker
    answered = f"SYSTEM: Which genre?\nUSER: {max(ANSWERS, key=len)}\n"  # fits, with little room to spare
    limit = len(encode(world.tokenizer, render_prompt(world.tokenizer, [{"role": "user", "content": answered}])))
    worker.config.data.max_prompt_length = limit
    sample = make_samples(is_validation=False)[0]
    sample["raw_prompt"] = [{"role": "user", "content": "I liked Alien (1979). " * 20}]
    world.run(samples=[sample])
    assert len(world.affinities) == 2
    assert world.affinities[0] == world.affinities[1]  # that server has the beginning of the prompt
    assert len(world.seeds) == len(set(world.seeds)) == 4  # three first turns, and one second turn
    prompt = to_plain(world.rows["train/u0_0_1"][1]["prompts"])
    assert len(prompt) <= limit
    text = world.tokenizer.decode(prompt, skip_special_tokens=True)
    assert text.count("I liked Alien") < 20  # the oldest words were cut
    assert "Which genre?" in text


@pytest.mark.parametrize("validate", [True, False])
def test_validation_gets_the_same_answers_at_every_step(catalog: str, validate: bool) -> None:
    dialogues = make_dialogues(catalog)
    conversations = set()
    for step in range(8):
        message = {"role": "user", "content": "Hello"}
        sample = dialogues.open_questions(make_samples()[0] | {"raw_prompt": [message]}, 0)
        output: Any = SimpleNamespace(response_ids=tiny_tokenizer().encode("Which genre?"), extra_fields={})
        prompt = Prompt(sample, {}, {"step": step, "validate": validate}, 1)
        following = dialogues.next_turn(SampledResponse(sample, output), prompt, 0)
        assert following is not None
        conversations.add(following.sample["raw_prompt"][0]["content"])
    assert (len(conversations) == 1) == validate


def test_a_constrained_turn_never_repeats_a_question_or_asks_last(catalog: str) -> None:
    dialogues = make_dialogues(catalog)
    turns = [(0, []), (1, ["genre"]), (2, ["genre"])]
    opened = [dialogues.open_questions({}, turn, asked)[OPEN] for turn, asked in turns]
    assert opened == [[-1, -2], [-2], []]
