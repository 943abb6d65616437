"""Generation with real vLLM on a tiny model: it samples from the checkpoint's weights, with a tied head or not."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from convrec.base.errors import UserError
from convrec.inference import generate as module
from convrec.inference.answers import GenerationRequest, load_or_generate_answers
from convrec.inference.engines import offline
from convrec.inference.engines.offline import Answer
from convrec.inference.engines.placement import Placement
from convrec.inference.generate import compute_batch_size, generate, reuse_engines
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
        parameter.data *= 3  # far from uniform, so that a wrong weight changes the argmax
    model.save_pretrained(folder)
    return folder


def decode_greedily(folder: Path, prompt: str, max_tokens: int) -> list[int]:
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
SETTINGS = {"max_tokens": 24, "max_prompt_tokens": 64, "progress": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tied", tied=True)


@pytest.fixture(scope="module")
def single_replica(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Answer], Path]:
    """The answers of one replica to PROMPTS, and its log."""
    log = tmp_path_factory.mktemp("generate") / "log" / "vllm.log"
    return generate(model, PROMPTS, log_file=log, **SETTINGS), log


@pytest.mark.e2e
def test_greedy_answers_are_those_of_the_checkpoint(model: Path, single_replica: tuple[list[Answer], Path]) -> None:
    answers, log = single_replica
    assert [answer["token_ids"] for answer in answers[:2]] == [decode_greedily(model, text, 24) for text in TEXTS[:2]]
    assert [answer["prompt_truncated"] for answer in answers] == [text is LONG for text in TEXTS]
    assert answers[TEXTS.index(LONG)]["prompt_tokens"] <= 64
    assert all(answer["finish_reason"] in ("stop", "length") and "<|im_" not in answer["text"] for answer in answers)
    assert log.stat().st_size > 0


@pytest.mark.e2e
@pytest.mark.long
def test_two_replicas_give_the_answers_of_one(
    model: Path, single_replica: tuple[list[Answer], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """test_pool.py kills replicas."""
    batches: list[list[int]] = []

    def keep(batch: list[tuple[int, Answer]]) -> None:
        batches.append([index for index, _ in batch])

    log = tmp_path / "vllm.log"
    monkeypatch.setattr(module, "CPU_BATCH", 2)
    answers = generate(model, PROMPTS, placement=Placement(2), on_batch=keep, log_file=log, **SETTINGS)
    assert answers == single_replica[0]
    assert sorted(batches) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
    assert {path.name for path in tmp_path.iterdir()} == {"vllm.log", "vllm-1.log"}


@pytest.mark.e2e
def test_another_models_answers_differ_and_are_generated_once(
    single_replica: tuple[list[Answer], Path], tmp_path: Path
) -> None:
    other = make_model(tmp_path / "untied", tied=False)
    prompts = {prompt_id(messages): messages for messages in PROMPTS}
    request = GenerationRequest(str(other), prompts, tmp_path / "answers.parquet")
    for repetition in range(2):  # the second time finds the answers, and starts nothing
        answers, num_new = load_or_generate_answers(request, temperature=0.0, **SETTINGS)
        assert (len(answers), num_new) == (len(prompts), 0 if repetition else len(prompts))
    assert not {answer["text"] for answer in answers.values()} & {answer["text"] for answer in single_replica[0]}
    assert answers[prompt_id(PROMPTS[1])]["token_ids"] == decode_greedily(other, TEXTS[1], 24)


@pytest.mark.e2e
def test_engine_is_reused_for_checkpoints_of_the_same_model_only(
    model: Path, single_replica: tuple[list[Answer], Path], tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    later = Path(shutil.copytree(model, tmp_path / "later"))
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for parameter in weights.parameters():
        parameter.data = parameter.data.flip(0)
    weights.save_pretrained(later)
    folders = {"first": model, "later": later, "again": model, "untied": make_model(tmp_path / "untied", tied=False)}
    with reuse_engines():
        answers = {
            name: generate(folder, PROMPTS, log_file=tmp_path / f"{name}.log", **SETTINGS)
            for name, folder in folders.items()
        }
    for name, folder in folders.items():
        expected = [decode_greedily(folder, text, 24) for text in TEXTS[:2]]
        assert [answer["token_ids"] for answer in answers[name][:2]] == expected
    assert answers["first"] == answers["again"] == single_replica[0] != answers["later"]
    assert {path.stem for path in tmp_path.glob("*.log")} == {"first", "untied"}  # the engines that were started


FILE_TARGET = """
from pathlib import Path

def load(spec):
    Path(spec.model, "model.safetensors").read_bytes()
    return lambda batch, tell: [batch[0] for _ in batch[1]]
"""


def test_engines_start_again_after_the_model_that_they_start_with_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real replicas, without vLLM: an answer is the path of the model."""
    (tmp_path / "file_target.py").write_text(FILE_TARGET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(offline, "load", import_module("file_target").load)
    gone, whole = (tmp_path / name for name in ("gone", "whole"))
    for folder in (gone, whole):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    (whole / "model.safetensors").touch()
    with reuse_engines():
        with pytest.raises(RuntimeError, match="a replica failed"):
            generate(gone, PROMPTS, log_file=tmp_path / "log", **SETTINGS)
        assert generate(whole, PROMPTS, log_file=tmp_path / "log", **SETTINGS) == [str(whole)] * len(PROMPTS)


@pytest.mark.e2e
@pytest.mark.long
def test_samples_of_an_untied_model_differ(tmp_path: Path) -> None:
    model = make_model(tmp_path / "untied", tied=False)
    samples = [
        generate(model, PROMPTS[:2], max_tokens=12, temperature=1.0, seed=seed, progress=False) for seed in (5, 6)
    ]
    assert len({tuple(answer["token_ids"]) for answers in samples for answer in answers}) == 4


def test_a_missing_model_is_a_user_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        generate(tmp_path / "missing", PROMPTS, max_tokens=5)


def test_no_prompts_start_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert generate(tmp_path, [], max_tokens=5) == []


def test_batches_divide_evenly_among_replicas() -> None:
    assert [compute_batch_size(130, 1, on_gpu=False), compute_batch_size(130, 1, on_gpu=True)] == [128, 1024]
    assert compute_batch_size(130, 2, on_gpu=False) == 65
    assert compute_batch_size(3000, 2, on_gpu=True) == 750  # two each; three of 1,024 would leave a replica idle
    assert compute_batch_size(3, 8, on_gpu=True) == 1
