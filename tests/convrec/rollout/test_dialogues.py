"""Rollouts that ask: a row of the batch for each turn, lists scored, questions credited with what followed."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf

from convrec.data.chat import encode, render_prompt
from convrec.dialogue.users import LABEL_WORDINGS
from convrec.rank_grpo.questions import question_advantages
from convrec.rollout.constraint import OPEN
from convrec.rollout.dialogues import Dialogues
from convrec.rollout.responses import TURN, Prompt, SampledResponse
from convrec.training.rank_trainer import _turns
from tests.convrec.rollout.test_groups import World, plain, samples, tokenizer  # noqa: F401  a fixture

GENRES = {"Alien": ["horror"], "Heat": ["crime"], "Jaws": ["horror"]}
ASKS = {"ask": ["genre", "decade"], "max_turns": 3, "ask_cost": 0.05, "num_items": 3}
SAID = [wording.format(labels="crime").capitalize() for wording in LABEL_WORDINGS[::2]]


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    films = [
        {"title": title, "year": year, "genres": GENRES[title]}
        for title, year in (("Alien", 1979), ("Heat", 1995), ("Jaws", 1975))
    ]
    pq.write_table(pa.Table.from_pylist(films), tmp_path / "catalog.parquet")
    return str(tmp_path / "catalog.parquet")


@pytest.fixture
def world(tokenizer: Any, catalog: str, monkeypatch: pytest.MonkeyPatch) -> World:  # noqa: F811
    """Of each prompt the first rollout asks, the second lists at once, the third does both."""
    turns = {0: ["Which genre?", "Heat (1995)\nJaws (1975)"], 1: ["Jaws (1975)\nHeat (1995)"]}
    turns[2] = ["Which genre?\nHeat (1995)"]

    def generated(worker: Any) -> Any:
        generate = worker._generate

        async def of_turn(prompts: list[Any], group: str) -> list[Any]:
            found = await generate(prompts, group)
            for one in found:
                said = one.sample["raw_prompt"][0]["content"].count("SYSTEM: ")
                text = turns[one.sample["session_id"]][said]
                one.output.response_ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
                one.output.response_mask = [1] * len(one.output.response_ids)
                one.output.response_logprobs = [0.0] * len(one.output.response_ids)
            return found

        return of_turn

    world = World(tokenizer, catalog, monkeypatch, in_groups=True, catalog_file=catalog, **ASKS)
    world.worker._generate = generated(world.worker)
    return world


@pytest.fixture
def rows(world: World) -> dict[str, dict[str, Any]]:
    """What rollouts put."""
    some = [one | {"extra_info": {"index": one["index"]}} for one in samples()]  # rank returns, as in training
    world.run(rows=some)
    return {key.removeprefix("train/"): row for key, (_, row) in world.rows.items() if row}


def test_every_turn_is_a_row_and_lists_alone_are_scored(rows: dict[str, dict[str, Any]], tokenizer: Any) -> None:  # noqa: F811
    assert set(rows) == {f"u{u}_{tail}" for u in range(3) for tail in ("0_0", "0_1", "1_0", "2_0")}
    for u in range(3):
        question, after, at_once, both = (rows[f"u{u}_{tail}"] for tail in ("0_0", "0_1", "1_0", "2_0"))
        (asked,), (prompted,) = plain(question["raw_prompt"]), plain(after["raw_prompt"])
        assert prompted["content"].startswith(asked["content"])
        said = prompted["content"].removeprefix(asked["content"]).strip().split("\n")
        assert said[0] == "SYSTEM: Which genre?"
        assert said[1].removeprefix("USER: ").capitalize() in SAID
        # what the user says is in the prompt of the next turn, and no token of a response
        text = tokenizer.decode(plain(after["prompts"]), skip_special_tokens=True)
        assert "SYSTEM: Which genre?" in text
        assert set(plain(question["response_mask"])) == set(plain(after["response_mask"])) == {1}
        infos = [plain(row["extra_fields"])["reward_extra_info"] for row in (question, after, at_once, both)]
        assert [info["relevance"] for info in infos] == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]
        notes = [plain(row["extra_fields"])[TURN] for row in (question, after, at_once, both)]
        assert [(note["turn"], note["asked"]) for note in notes] == [(0, 1), (1, 1), (0, 0), (0, 0)]
        assert [note["question"] for note in notes] == [True, False, False, False]
        assert notes[3]["malformed"]


def test_a_malformed_turn_earns_nothing_when_rewards_come_one_by_one_either(world: World) -> None:
    world.worker.__dict__["rewards_in_groups"] = False
    world.run(rows=[one | {"extra_info": {"index": one["index"]}} for one in samples()])
    scored = {key[-3:]: row["extra_fields"]["reward_extra_info"] for key, (_, row) in world.rows.items() if row}
    assert "score a group" not in world.calls
    assert scored["0_1"]["rank_returns"] == [1, 0, 0]
    assert scored["2_0"]["rank_returns"] == [0, 0, 0]
    assert scored["2_0"]["score"] == 0


def test_the_trainer_reads_the_turns(rows: dict[str, dict[str, Any]]) -> None:
    given = [(key.split("_")[0], plain(row["extra_fields"])) for key, row in sorted(rows.items())]
    turns = _turns([uid for uid, _ in given], [extra for _, extra in given])
    assert turns.gain_B[:4].tolist() == pytest.approx([1, 1, 0.6309, 0], abs=1e-4)
    advantages_B = question_advantages(turns, 0.05, norm_by_std=False)
    # R = .95, .6309, 0 of the three rollouts: the question's is .95 less their mean
    assert advantages_B[:4].tolist() == pytest.approx([0.95 - (0.95 + 0.6309) / 3, 0, 0, 0], abs=1e-4)
    assert len(set(turns.list_groups)) == 3 * 3
    assert torch.equal(turns.asked_B[:4], torch.tensor([1, 1, 0, 0]))


def test_a_further_turn_has_its_server_a_draw_of_its_own_and_a_prompt_that_fits(
    world: World,
    tokenizer: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, groups, seeds = world.worker, list[str](), list[int]()
    acquire, params_of = worker.llm_client._acquire_server, worker.sampling_params_of

    async def acquired(group: str, **first: Any) -> Any:
        groups.append(group)
        return await acquire(group, **first)

    def drawn(*of: Any) -> dict[str, Any]:
        params = params_of(*of)
        seeds.append(params["seed"])
        return params

    monkeypatch.setattr(worker.llm_client, "_acquire_server", acquired)
    monkeypatch.setattr(worker, "sampling_params_of", drawn)
    answered = f"SYSTEM: Which genre?\nUSER: {max(SAID, key=len)}\n"  # has room, and little else
    prompt_text = render_prompt(tokenizer, [{"role": "user", "content": answered}])
    worker.config.data.max_prompt_length = limit = len(encode(tokenizer, prompt_text))
    long = [{"role": "user", "content": "I liked Alien (1979). " * 20}]
    world.run(rows=[samples()[0] | {"raw_prompt": long, "extra_info": {"index": 0}}])
    assert len(groups) == 2
    assert groups[0] == groups[1]  # a turn goes where its beginning is
    assert len(seeds) == len(set(seeds)) == 4  # three rollouts, and the one that asked goes on
    prompt = plain(world.rows["train/u0_0_1"][1]["prompts"])
    assert len(prompt) <= limit
    text = tokenizer.decode(prompt, skip_special_tokens=True)
    assert text.count("I liked Alien") < 20  # the oldest words went
    assert "Which genre?" in text


@pytest.mark.parametrize("validate", [True, False])
def test_a_validation_hears_the_same_at_every_step(tokenizer: Any, catalog: str, validate: bool) -> None:  # noqa: F811
    config = {"convrec": {"catalog_file": catalog, **ASKS}, "data": {"seed": 0, "max_prompt_length": 300}}
    dialogues, heard = Dialogues(OmegaConf.create(config), tokenizer), set()
    for step in range(8):
        sample = dialogues.opened(samples()[0] | {"raw_prompt": [{"role": "user", "content": "Hello"}]}, 0)
        output = SimpleNamespace(response_ids=tokenizer.encode("Which genre?"), extra_fields={})
        prompt = Prompt(sample, {}, {"step": step, "validate": validate}, 1)
        following = dialogues.next_turn(SampledResponse(sample, output), prompt, 0)  # type: ignore[arg-type]
        assert following is not None
        heard.add(following.sample["raw_prompt"][0]["content"])
    assert (len(heard) == 1) == validate


def test_what_a_constrained_turn_may_ask(tokenizer: Any, catalog: str) -> None:  # noqa: F811
    config = {"convrec": {"catalog_file": catalog, **ASKS}, "data": {"seed": 0}}
    dialogues = Dialogues(OmegaConf.create(config), tokenizer)
    opened = [dialogues.opened({}, turn, asked)[OPEN] for turn, asked in ((0, ()), (1, ["genre"]), (2, ["genre"]))]
    assert opened == [[-1, -2], [-2], []]
    assert list(itertools.chain(*opened)) == [-1, -2, -2]
