"""A run on a CPU: what is free, the micro-batch that fits into it, and the estimate against what was measured."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from omegaconf import OmegaConf
from transformers import LlamaConfig

from convrec.settings.run import Run
from recipes.launch.settings import compose
from recipes.planning import estimate, memory
from recipes.planning.estimate import FULL, GIB, Workload
from recipes.planning.lengths import TEMPLATE_TOKENS, Lengths, sample_lengths
from recipes.planning.models import KNOWN_MODELS, ModelSize
from recipes.preflight import findings

SMOLLM2 = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
SMOLLM2 |= {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
TOKENS = "data.max_token_len_per_gpu"
SftRun = Callable[..., Run[Any]]


@pytest.fixture
def sft_run(sample: Path, model: Path, tmp_path: Path, set_variables: Callable[[Mapping[str, str]], None]) -> SftRun:
    """A run of SFT on this host of a model of SmolLM2-135M's shape, with the words of a small one."""
    folder = tmp_path / "smollm2"
    LlamaConfig(**SMOLLM2).save_pretrained(folder)
    (folder / "tokenizer.json").write_text((model / "tokenizer.json").read_text())

    def compose_run(*overrides: str) -> Run[Any]:
        files = {"TRAIN_FILE": sample / "sft_train.parquet", "VAL_FILE": sample / "sft_validation.parquet"}
        paths = {"MODEL_PATH": folder, "SAVE_PATH": tmp_path / "run", **files}
        set_variables({name: str(path) for name, path in paths.items()})
        return compose("sft", list(overrides))

    return compose_run


def have_free(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: int(gib * GIB))


# ---- the micro-batch


def test_the_micro_batch_is_the_largest_that_free_memory_holds(
    sft_run: SftRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_free(monkeypatch, 8)
    run = sft_run()
    (line,) = memory.fit_micro_batch(run)
    tokens = OmegaConf.select(run.verl_config, TOKENS)
    assert line.startswith(f"{TOKENS}=12288: lowered to {tokens}")
    assert "8.0 GiB" in line
    assert 1024 < tokens < 12_288

    def needs(tokens: int) -> int:
        return estimate.host_bytes(replace(memory.host_workload(run), most_tokens=tokens))

    assert needs(tokens) <= FULL * 8 * GIB < needs(tokens + 2 * memory.TOKENS_STEP)
    assert memory.fit_micro_batch(run) == []


def test_a_micro_batch_that_fits_stays(sft_run: SftRun, monkeypatch: pytest.MonkeyPatch) -> None:
    have_free(monkeypatch, 500)
    run = sft_run(f"{TOKENS}=2048")
    assert memory.fit_micro_batch(run) == []
    assert OmegaConf.select(run.verl_config, TOKENS) == 2048


def test_a_run_that_does_not_fit_at_all_is_refused(sft_run: SftRun, monkeypatch: pytest.MonkeyPatch) -> None:
    have_free(monkeypatch, 1)
    run = sft_run()
    assert memory.fit_micro_batch(run) == []  # the error is enough
    report: Any = SimpleNamespace(where="here", device_memory=0, memory_available=1 * GIB)
    (result,) = findings.check_memory(memory.host_workload(run), [report])
    assert result.status == "failure"
    assert "1.0 GiB are available" in result.what


def test_rl_keeps_log_probs_to_the_same_micro_batch(
    good: dict[str, str],
    set_variables: Callable[[Mapping[str, str]], None],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_free(monkeypatch, 12)
    folder = tmp_path / "smollm2"
    LlamaConfig(**SMOLLM2).save_pretrained(folder)
    (folder / "tokenizer.json").write_text((model / "tokenizer.json").read_text())
    set_variables(good | {"MODEL_PATH": str(folder), "TRAIN_BATCH_SIZE": "16", "ROLLOUT_N": "8"})
    run = compose("rank_grpo", [])
    assert len(memory.fit_micro_batch(run)) == 1
    lists = run.verl_config.actor_rollout_ref
    tokens = lists.actor.ppo_max_token_len_per_gpu
    assert 256 + 128 <= tokens < 16_384
    assert lists.rollout.log_prob_max_token_len_per_gpu == lists.ref.log_prob_max_token_len_per_gpu == tokens


# ---- the estimate

SMOLLM2_SIZE = ModelSize(
    parameters=134_515_008,
    layers=30,
    hidden=576,
    vocabulary=49_152,
    heads=9,
    kv_heads=3,
    head_size=64,
    intermediate=1536,
)


def sft_workload(tokens: int, rows: int, prompt: float, response: float, longest: int) -> Workload:
    """A step of SFT on a CPU."""
    batch = {"prompts": rows, "rollouts": 1, "mini_batch": rows, "mu": 1, "has_reference": False}
    lengths = {"prompt": prompt, "response": response, "longest": longest, "longest_allowed": 1024}
    micro_batches = {"packs": True, "pads": True, "most_tokens": tokens}
    training = {"recomputes": False, "lora_rank": 0, "chunks_logits": False, "tensor_parallel": 0}
    machine = {"device": "cpu", "nodes": 1, "gpus_per_node": 1}
    return Workload(size=SMOLLM2_SIZE, **batch | lengths | micro_batches | training | machine)  # type: ignore[arg-type]


def test_the_parts_of_sft_on_a_cpu() -> None:
    """Five rows of 400 tokens, 200 of them trained, one of 600: 2,000 tokens are two micro-batches of 1,000, which
    padding makes 1,500. A layer keeps 11 x 576 + 4 x 1536 = 12,480 numbers of each."""
    parts = estimate.host_parts(sft_workload(1024, rows=5, prompt=200, response=200, longest=600))
    state = ("parameters", "gradients", "copy of the weights")
    assert [parts[name] for name in state] == [4 * 134_515_008] * 3
    assert parts["optimizer"] == 8 * 134_515_008
    assert parts["activations"] == 1500 * 30 * 12_480 * 4
    assert parts["logits"] == 500 * 49_152 * 16
    assert parts["kept by the heap"] == int(0.15 * (parts["activations"] + parts["logits"]))


def half_b_workload() -> Workload:
    """A step of Rank-GRPO of Qwen2.5-0.5B's shape, recomputed, with fused log-probs and a rollout in bf16."""
    batch = {"prompts": 2, "rollouts": 4, "mini_batch": 2, "mu": 1, "has_reference": True}
    lengths = {"prompt": 128, "response": 32, "longest": 160, "longest_allowed": 160}
    training = {"packs": True, "most_tokens": 512, "recomputes": True, "lora_rank": 0, "chunks_logits": True}
    machine = {"device": "cpu", "nodes": 1, "gpus_per_node": 1, "tensor_parallel": 1, "rollout_dtype": "bfloat16"}
    size = KNOWN_MODELS["0.5B"].size
    return Workload(size=size, **batch | lengths | training | machine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workload", "measured_mib"),
    [
        (sft_workload(1024, rows=5, prompt=197, response=222, longest=590), 5094),
        (sft_workload(2048, rows=5, prompt=197, response=222, longest=590), 6807),
        (sft_workload(3072, rows=6, prompt=163, response=219, longest=385), 8122),
        (half_b_workload(), 19_866),
    ],
)
def test_the_estimate_is_within_a_fifth_of_what_was_measured(workload: Workload, measured_mib: int) -> None:
    """notes/real-size-on-cpu.md"""
    assert estimate.host_bytes(workload) / 2**20 == pytest.approx(measured_mib, rel=0.2)


# ---- lengths


def test_lengths_are_those_of_the_data(sft_run: SftRun, sample: Path) -> None:
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    run = sft_run()
    rows = pq.read_table(sample / "sft_train.parquet").to_pylist()
    tokenizer = Tokenizer.from_file(f"{run.settings.model}/tokenizer.json")
    counts = [[len(tokenizer.encode(row[name][0]["content"]).ids) for name in ("prompt", "completion")] for row in rows]
    whole = [min(TEMPLATE_TOKENS + prompt + response, 1024) for prompt, response in counts]
    found = sample_lengths(run)
    assert isinstance(found, Lengths)
    assert found.longest == max(whole)
    assert found.response == pytest.approx(sum(response for _, response in counts) / len(rows))
    assert found.prompt == pytest.approx(sum(whole) / len(rows) - found.response)


@pytest.mark.parametrize("name", ["TRAIN_FILE", "tokenizer.json"])
def test_without_data_or_words_lengths_are_assumed(sft_run: SftRun, name: str, tmp_path: Path) -> None:
    run = sft_run(*[f"data.train_files={tmp_path / 'nothing.parquet'}"] * (name == "TRAIN_FILE"))
    if name == "tokenizer.json":
        Path(run.settings.model, name).unlink()
    assert sample_lengths(run) is None
    assert memory.host_workload(run).longest == 1024


# ---- free memory


def write_cgroup(folder: Path, limit: str, usage: int, version: int = 2) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text("anon 5\ninactive_file 100\nactive_file 28\n")


def free(tmp_path: Path, membership: str) -> int:
    file = tmp_path / "proc" / "self" / "cgroup"
    file.parent.mkdir(parents=True)
    file.write_text(membership)
    return memory.available_bytes(tmp_path)


def test_the_limit_of_a_container_counts_without_its_file_cache(tmp_path: Path) -> None:
    write_cgroup(tmp_path / "sys/fs/cgroup" / "a" / "b", str(1000), 600)
    assert free(tmp_path, "0::/a/b\n") == 1000 - 600 + 128


def test_the_limit_of_a_group_above_counts_too(tmp_path: Path) -> None:
    write_cgroup(tmp_path / "sys/fs/cgroup" / "a" / "b", "max", 600)
    write_cgroup(tmp_path / "sys/fs/cgroup" / "a", "900", 700)
    write_cgroup(tmp_path / "sys/fs/cgroup", "5000", 700)
    assert free(tmp_path, "0::/a/b\n") == 900 - 700 + 128


def test_version_1_has_a_folder_of_its_own(tmp_path: Path) -> None:
    write_cgroup(tmp_path / "sys/fs/cgroup" / "memory" / "docker", "1000", 600, version=1)
    assert free(tmp_path, "4:cpu,cpuacct:/docker\n5:memory:/docker\n") == 1000 - 600 + 128


def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine:
        available = 12345

    monkeypatch.setattr(psutil, "virtual_memory", Machine)
    write_cgroup(tmp_path / "sys/fs/cgroup", "max", 600)
    assert free(tmp_path, "0::/\n") == 12345
    assert memory.available_bytes(tmp_path / "nothing") == 12345
