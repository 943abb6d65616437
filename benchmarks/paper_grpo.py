"""Rank-GRPO by the paper's own code on a CPU, for bench_training.py: its trainer and its reward on TRL 0.21.

PYTHONPATH=. PEERS/paper/venv/bin/python benchmarks/paper_grpo.py RUN/job.json

PEERS is what benchmarks/peers_environment.sh has made. The paper's code runs unchanged. The rest is done around it:

1) Its trainer is loaded from the clone under the name that it has after INSTALL.SH, which copies it into TRL.
2) Transformers generates, as the code does without --use_vllm.
3) AdamW is torch's. The code's default, the paged one of bitsandbytes, is for GPUs.
4) Transformers 4.55 does not know the class of tokenizer and the RoPE settings that Transformers 5 saves: the tokenizer
   is built from its files, and the base of the RoPE is passed on.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

from benchmarks.peers import StepRecorder, read_job, read_rows, save_model, trainer_options

CODE = Path(sys.prefix).parent / "code"
# train_rank_grpo.py has these values, too.
PAPER = {"importance_sampling_level": "item", "epsilon": 0.06, "epsilon_high": 0.08}


def main() -> None:
    sys.path.insert(0, str(CODE))
    from datasets import Dataset
    from trl import GRPOConfig

    job = read_job(sys.argv[1])
    num_items = job.reward["num_items"]
    make_reward = importlib.import_module("libs.reward_funcs").make_reward_func_individual
    trainer = load_trainer()(
        model=job.model,
        reward_funcs=make_reward(rec_num=num_items, gt_catalog=read_catalog(job.reward["catalog_path"])),
        rec_num=num_items,
        args=GRPOConfig(
            **trainer_options(job),
            **PAPER,
            max_prompt_length=job.max_prompt_length,
            model_init_kwargs={"torch_dtype": "float32", "rope_theta": read_rope_theta(Path(job.model))},
        ),
        train_dataset=Dataset.from_list(read_rows(job)),
        processing_class=load_tokenizer(Path(job.model)),
    )
    trainer.add_callback(StepRecorder(trainer.model, job.run_folder))
    trainer.train()
    save_model(trainer.model, job)


def load_trainer() -> Any:
    """Return the class of the paper's trainer; its relative imports are those of a module of trl.trainer."""
    name = "trl.trainer.rank_grpo_trainer"
    spec = importlib.util.spec_from_file_location(name, CODE / "libs" / "trl" / "rank_grpo_trainer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.RankGRPOTrainer


def read_catalog(path: str) -> set[tuple[str, int]]:
    """Read the catalog as the paper's reward takes it: titles with their years; items without a year are left out."""
    columns = pq.read_table(path, columns=["title", "year"]).to_pydict()
    return {(title, year) for title, year in zip(columns["title"], columns["year"], strict=True) if year is not None}


def read_rope_theta(model: Path) -> float:
    """Read the base of the rotary embedding where Transformers 5 writes it."""
    return json.loads((model / "config.json").read_text(encoding="utf-8"))["rope_parameters"]["rope_theta"]


def load_tokenizer(model: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer from its files, without the name of its class."""
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(model / "tokenizer.json"),
        chat_template=(model / "chat_template.jinja").read_text(encoding="utf-8"),
        eos_token=config["eos_token"],
        pad_token=config.get("pad_token"),
        model_input_names=["input_ids", "attention_mask"],  # of the default, the models refuse token_type_ids
    )


if __name__ == "__main__":
    main()
