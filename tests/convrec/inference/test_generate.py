"""vLLM for real, on a tiny model made here: the weights it samples from are the checkpoint's, tied head or not."""

import shutil
from pathlib import Path

import pytest

from convrec.base.errors import UserError
from convrec.inference import generate as module
from convrec.inference.answers import GenerationRequest, model_answers
from convrec.inference.engines.offline import Answer
from convrec.inference.engines.placement import Placement
from convrec.inference.generate import engines_kept, generate, size_of_batch
from convrec.inference.prompts import prompt_id
from recipes.tiny_model import make_tiny_model


def make_model(folder: Path, *, tied: bool) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "max_positions": 512}
    texts = ["Toy Story (1995)\nAmélie (2001)\nUSER: SYSTEM: "] * 30
    make_tiny_model(folder, texts, vocab_size=400, tie_word_embeddings=tied, **sizes)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data *= 3  # far from uniform: a wrong weight shows in the argmax
    model.save_pretrained(folder)
    return folder


def greedy_by_transformers(folder: Path, prompt: str, max_tokens: int) -> list[int]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    out = model.generate(ids, max_new_tokens=max_tokens, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


LONG = "Here is the conversation: " + "USER: old news\nSYSTEM: noted\n" * 60 + "USER: Toy Story\n"
TEXTS = ["Toy Story (1995)", "Amélie (2001)", LONG, *(f"Film {number}" for number in range(8))]
PROMPTS = [[{"role": "user", "content": text}] for text in TEXTS]
ASKED = {"max_tokens": 24, "max_prompt_tokens": 64, "progress": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tied", tied=True)


@pytest.fixture(scope="module")
def answered(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Answer], Path]:
    """PROMPTS answered by one replica, and its log."""
    log = tmp_path_factory.mktemp("generate") / "log" / "vllm.log"
    return generate(model, PROMPTS, log_file=log, **ASKED), log


@pytest.mark.e2e
def test_greedy_answers_are_the_checkpoints_own(model: Path, answered: tuple[list[Answer], Path]) -> None:
    found, log = answered
    assert [answer["token_ids"] for answer in found[:2]] == [
        greedy_by_transformers(model, text, 24) for text in TEXTS[:2]
    ]
    assert [answer["prompt_truncated"] for answer in found] == [text is LONG for text in TEXTS]
    assert found[TEXTS.index(LONG)]["prompt_tokens"] <= 64
    assert all(answer["finish_reason"] in ("stop", "length") and "<|im_" not in answer["text"] for answer in found)
    assert log.stat().st_size > 0


@pytest.mark.e2e
@pytest.mark.long
def test_two_replicas_write_what_one_does(
    model: Path, answered: tuple[list[Answer], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed: test_pool.py."""
    batches: list[list[int]] = []

    def keep(batch: list[tuple[int, Answer]]) -> None:
        batches.append([index for index, _ in batch])

    log = tmp_path / "vllm.log"
    monkeypatch.setattr(module, "CPU_BATCH", 2)
    found = generate(model, PROMPTS, placement=Placement(2), on_batch=keep, log_file=log, **ASKED)
    assert found == answered[0]
    assert sorted(batches) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
    assert {path.name for path in tmp_path.iterdir()} == {"vllm.log", "vllm-1.log"}


@pytest.mark.e2e
def test_another_models_answers_are_its_own_and_asked_once(answered: tuple[list[Answer], Path], tmp_path: Path) -> None:
    other = make_model(tmp_path / "untied", tied=False)
    prompts = {prompt_id(messages): messages for messages in PROMPTS}
    asked = GenerationRequest(str(other), prompts, tmp_path / "answers.parquet")
    for times in range(2):  # the same question finds them, and starts nothing
        found, new = model_answers(asked, temperature=0.0, **ASKED)
        assert (len(found), new) == (len(prompts), 0 if times else len(prompts))
    assert not {one["text"] for one in found.values()} & {answer["text"] for answer in answered[0]}
    assert found[prompt_id(PROMPTS[1])]["token_ids"] == greedy_by_transformers(other, TEXTS[1], 24)


@pytest.mark.e2e
def test_engine_is_reused_for_checkpoints_of_the_same_model_only(
    model: Path, answered: tuple[list[Answer], Path], tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    later = Path(shutil.copytree(model, tmp_path / "later"))
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for parameter in weights.parameters():
        parameter.data = parameter.data.flip(0)
    weights.save_pretrained(later)
    folders = {"first": model, "later": later, "again": model, "untied": make_model(tmp_path / "untied", tied=False)}
    with engines_kept():
        found = {
            name: generate(folder, PROMPTS, log_file=tmp_path / f"{name}.log", **ASKED)
            for name, folder in folders.items()
        }
    for name, folder in folders.items():
        own = [greedy_by_transformers(folder, text, 24) for text in TEXTS[:2]]
        assert [answer["token_ids"] for answer in found[name][:2]] == own
    assert found["first"] == found["again"] == answered[0] != found["later"]
    assert {path.stem for path in tmp_path.glob("*.log")} == {"first", "untied"}  # whose engines have started


@pytest.mark.e2e
@pytest.mark.long
def test_samples_of_an_untied_model_differ(tmp_path: Path) -> None:
    model = make_model(tmp_path / "untied", tied=False)
    sampled = [
        generate(model, PROMPTS[:2], max_tokens=12, temperature=1.0, seed=seed, progress=False) for seed in (5, 6)
    ]
    assert len({tuple(answer["token_ids"]) for one in sampled for answer in one}) == 4


def test_a_missing_model_is_a_user_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        generate(tmp_path / "missing", PROMPTS, max_tokens=5)


def test_no_prompts_start_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert generate(tmp_path, [], max_tokens=5) == []


def test_batches_divide_evenly_among_replicas() -> None:
    assert [size_of_batch(130, 1, on_gpu=False), size_of_batch(130, 1, on_gpu=True)] == [128, 1024]
    assert size_of_batch(130, 2, on_gpu=False) == 65
    assert size_of_batch(3000, 2, on_gpu=True) == 750  # two each; three of 1,024 leave one replica idle
    assert size_of_batch(3, 8, on_gpu=True) == 1
