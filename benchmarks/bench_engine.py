"""SFT on a CPU by this program's engine against a plain PyTorch loop, in turns: tokens per second. Prints JSON.

    python benchmarks/bench_engine.py --model FOLDER_OR_RUN [--dtype bf16] [--rounds 3] [--rows 6] [--shortest 250]
        [--longest 550] [--completion 150] [--tokens 1024] [--ways engine plain] [--override KEY=VALUE ...]

The data are random tokens: --rows sequences of --shortest to --longest tokens, of which the last --completion are
trained on. Each way is a process of its own that updates its weights by AdamW, a step at a time, on the same rows:

engine        what `convrec train sft` trains with, by the settings of conf/; --override changes them
plain         Hugging Face's model on the same micro-batches, of at most --tokens: logits of trained tokens alone, rows
              padded, a mask where something is padded. In bf16 under autocast, with torch's own OpenMP
plain rows    the same, a sequence at a time, without padding

In each of --rounds a way takes STEPS_OF_TURN steps, of which the first does not count. Seconds are wall clock,
`cpu_seconds` those of all threads, `tokens_per_second` by the median wall clock of a step. `peak_MiB` is the most
memory that the process held. `plain_against_engine` is the faster plain loop's tokens per second over the engine's.
`product_gflops` is what this machine computes in products of hidden states and a matrix of the model's MLP,
`of_product` the share of it that a way reaches, with 6 operations for each weight and token.

--profile WAY writes a table of a step's operations to WAY.profile in the current folder.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from convrec.checkpoints.models import resolve_model
from convrec.cpu.openmp import use_intel_openmp
from recipes.launch.environment import make_process_environment, set_up_process
from recipes.preflight.precision import measure_precision

WAYS = ("engine", "plain", "plain rows")
LEARNING_RATE = 1e-5
WORDS_FROM = 10  # token ids below are special in most vocabularies
PRODUCT_REPEATS = 20
STEPS_OF_TURN = 4  # the first is slower, since the process has slept: a run takes its steps one after the other


def make_rows(options: argparse.Namespace) -> list[list[int]]:
    """Return sequences of random tokens, the same for the same options."""
    generator = random.Random(options.seed)
    lengths = [generator.randint(options.shortest, options.longest) for _ in range(options.rows)]
    return [[generator.randrange(WORDS_FROM, options.words) for _ in range(length)] for length in lengths]


class PlainLoop:
    """Hugging Face's model and AdamW, as one would write it."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.options = options
        self.model = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.float32, attn_implementation="sdpa"
        ).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
        self.autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16")

    def step(self, rows: list[list[int]]) -> None:
        """Update the weights by one batch."""
        import torch

        for micro_batch in self.micro_batches(rows):
            self.loss(micro_batch, len(rows) * self.options.completion).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def micro_batches(self, rows: list[list[int]]) -> list[list[list[int]]]:
        """Return the engine's micro-batches, or one for each row."""
        from convrec.training.attention.without_flash import group_by_length

        if self.options.way == "plain rows":
            return [[row] for row in rows]
        groups = group_by_length([len(row) for row in rows], self.options.tokens)
        return [[rows[index] for index in group] for group in groups]

    def loss(self, rows: list[list[int]], num_trained: int) -> Any:
        """Return the summed loss of a micro-batch over the trained tokens of the whole batch."""
        import torch

        lengths = torch.tensor([len(row) for row in rows])
        longest = int(lengths.max())
        input_ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        places = torch.arange(longest)
        mask = places < lengths[:, None]
        is_target = mask & (places >= lengths[:, None] - self.options.completion)
        with self.autocast():
            hidden = self.model.model(
                input_ids=input_ids, attention_mask=None if mask.all() else mask, use_cache=False
            ).last_hidden_state
            logits = self.model.lm_head(hidden[:, :-1][is_target[:, 1:]])
        targets = input_ids[:, 1:][is_target[:, 1:]]
        return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum") / num_trained


class Engine:
    """verl's engine on a CPU as `convrec train sft` sets it up."""

    def __init__(self, options: argparse.Namespace) -> None:
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
        from verl.workers.utils.losses import sft_loss

        from convrec.training.sft.trainer import prepare_engine
        from convrec.training.worker import prepare_process
        from recipes.launch.recipe import SFT
        from recipes.launch.settings import compose_elsewhere
        from recipes.launch.sft_training import ONE_PROCESS

        overrides = [
            f"model.path={options.model}",
            f"optim.lr={LEARNING_RATE}",
            "optim.lr_scheduler_type=constant",
            "optim.lr_warmup_steps_ratio=0",
            "optim.total_training_steps=100",
            f"data.max_token_len_per_gpu={options.tokens}",
            f"engine.mixed_precision.param_dtype={options.dtype}",
        ]
        run = compose_elsewhere(SFT, [*overrides, *options.override], ["sft_host=cpu"], {})
        self.options = options
        self.config = run.verl_config
        os.environ.update(ONE_PROCESS)
        prepare_process()
        self.worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=omega_conf_to_dataclass(self.config.model),
                engine_config=omega_conf_to_dataclass(self.config.engine),
                optimizer_config=omega_conf_to_dataclass(self.config.optim),
                checkpoint_config=omega_conf_to_dataclass(self.config.checkpoint),
            )
        )
        self.worker.set_loss_fn(partial(sft_loss, config=None))
        self.worker.reset()
        prepare_engine(self.worker.engine)

    def step(self, rows: list[list[int]]) -> None:
        """Update the weights by one batch."""
        import torch
        from verl.utils import tensordict_utils

        completion = self.options.completion
        fields = {
            "input_ids": [torch.tensor(row) for row in rows],
            "position_ids": [torch.arange(len(row)) for row in rows],
            "loss_mask": [(torch.arange(len(row)) >= len(row) - completion).long() for row in rows],
        }
        nested = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in fields.items()}
        settings = {
            "use_remove_padding": self.config.model.use_remove_padding,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": self.options.tokens,
            "temperature": 1.0,
            "global_batch_size": len(rows),
        }
        self.worker.train_batch(tensordict_utils.get_tensordict(nested, settings))


def serve(way: str, options: argparse.Namespace, pipe: Connection) -> None:
    """In a process of its own: build the way's model, then take a step for every batch that comes."""
    if way == "engine":
        use_intel_openmp()
    else:  # the user's own loop does not set these
        os.environ.pop("OMP_WAIT_POLICY")
        os.environ.pop("GOMP_SPINCOUNT")
    import torch

    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # verl prints; standard output is for the figures
    options.way = way
    torch.manual_seed(options.seed)
    trainer: Engine | PlainLoop = Engine(options) if way == "engine" else PlainLoop(options)
    rows = make_rows(options)
    trainer.step(rows)
    pipe.send("ready")
    while pipe.recv() == "step":
        begin = time.perf_counter()
        cpu_begin = time.process_time()
        trainer.step(rows)
        pipe.send((time.perf_counter() - begin, time.process_time() - cpu_begin))
    if way in options.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            trainer.step(rows)
        Path(f"{way}.profile").write_text(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=40))
    status = Path("/proc/self/status").read_text()
    pipe.send(next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")))


def measure_product(options: argparse.Namespace) -> float:
    """Return GFLOP/s of the product of a micro-batch's hidden states and a matrix of the model's MLP."""
    import torch

    config = json.loads((options.model / "config.json").read_text())
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    hidden = torch.randn(options.tokens, config["hidden_size"]).to(dtype)
    weight = torch.randn(config["intermediate_size"], config["hidden_size"]).to(dtype)
    seconds = []
    for _ in range(PRODUCT_REPEATS):
        begin = time.perf_counter()
        torch.nn.functional.linear(hidden, weight)
        seconds.append(time.perf_counter() - begin)
    return 2 * hidden.numel() * len(weight) / min(seconds) / 1e9


def count_parameters(model: Path) -> int:
    """Return the weights of a model whose head is its embedding, or is counted with it."""
    from recipes.planning.models import read_model_size

    return read_model_size(str(model)).parameters


def run_in_turns(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the figures of each way."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    for way in options.ways:
        pipes[way], theirs = context.Pipe()
        context.Process(target=serve, args=(way, options, theirs), daemon=True).start()
        pipes[way].recv()
        times[way] = []
    for _ in range(options.rounds):
        for way, pipe in pipes.items():
            turn = []
            for _ in range(STEPS_OF_TURN):
                pipe.send("step")
                turn.append(pipe.recv())
            times[way] += turn[1:]
    num_tokens = sum(map(len, make_rows(options)))
    figures: dict[str, dict[str, Any]] = {}
    for way, pipe in pipes.items():
        pipe.send("stop")
        figures[way] = {
            "seconds": [round(wall, 2) for wall, _ in times[way]],
            "cpu_seconds": [round(cpu, 2) for _, cpu in times[way]],
            "tokens_per_second": num_tokens / statistics.median(wall for wall, _ in times[way]),
            "peak_MiB": pipe.recv(),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    for name, default in {"rounds": 3, "rows": 6, "shortest": 250, "longest": 550, "completion": 150}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], help="(that of a run on this processor)")
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--override", nargs="*", default=[])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--profile", nargs="*", default=[], choices=WAYS)
    options = parser.parse_args()
    set_up_process()
    os.environ.update(make_process_environment(has_accelerator=False))
    options.model = Path(resolve_model(str(options.model)))
    options.dtype = options.dtype or measure_precision(str(options.model)).dtype
    options.words = json.loads((options.model / "config.json").read_text())["vocab_size"]
    figures = run_in_turns(options)
    product = measure_product(options)
    operations = 6 * count_parameters(options.model)
    for way in figures.values():
        way["of_product"] = round(way["tokens_per_second"] * operations / 1e9 / product, 3)
        way["tokens_per_second"] = round(way["tokens_per_second"], 1)
    plain = [way["tokens_per_second"] for name, way in figures.items() if name != "engine"]
    ratio = round(max(plain) / figures["engine"]["tokens_per_second"], 3) if plain and "engine" in figures else None
    described = {key: str(value) for key, value in vars(options).items() if key not in ("profile", "words")}
    report = {"product_gflops": round(product, 1), "plain_against_engine": ratio, "ways": figures}
    print_report({"options": described, **report})


if __name__ == "__main__":
    main()
