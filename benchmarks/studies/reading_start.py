"""A start that can read a list, as a pretrained model can, and demonstrations of a teacher who reads candidates.

A model made from nothing does not learn in 300 steps of SFT to write titles of its prompt. It does in some hundred
where its output words are its input words (tied embeddings), and lists are short first (notes/retrieval.md).
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from convrec.base.files import atomic_write_folder
from convrec.data.schema import CONVERSATION_MARKER, split_prompt
from convrec.features.candidates.prompts import CANDIDATES_LINE, with_candidates
from convrec.retrieval.retriever import fuse

SEED = 3407
IGNORED = -100  # a label of Hugging Face's loss


class Stage(NamedTuple):
    """A stage of teaching.

    Attributes:
        titles: the least and the largest number of titles in a prompt, the same for a whole batch.
        words: the most words of the conversation, its last ones; 0: a whole prompt of candidates.
        batch: prompts per step.
        learning_rate: after a warm-up of 50 steps.
        steps: number of updates.
    """

    titles: tuple[int, int]
    words: int
    batch: int
    learning_rate: float
    steps: int


STAGES = (Stage((2, 8), 20, 64, 2e-3, 450), Stage((20, 50), 0, 16, 1e-3, 260))
SMALLEST = (Stage((2, 3), 5, 2, 1e-3, 2),)


def teach_to_read(
    model: Path, data: Path, lines: Sequence[str], num_items: int, out: Path, stages: Sequence[Stage] = STAGES
) -> None:
    """Teach a model to write the first titles that a prompt names, in their order.

    Args:
        model: the initial model.
        data: folder with sft_train.parquet, whose conversations are used.
        lines: the catalog's lines, from which titles are drawn.
        num_items: length of the lists.
        out: the folder to write, with the tokenizer.
        stages: one after the other.
    """
    torch.manual_seed(SEED)
    drawn, tokenizer = random.Random(SEED), AutoTokenizer.from_pretrained(model)
    taught = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompts = [_prompt(row) for row in pq.read_table(data / "sft_train.parquet", columns=["prompt"]).to_pylist()]
    for stage in stages:
        optimizer = torch.optim.AdamW(taught.parameters(), stage.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=50)
        batches = _batches(stage, prompts, lines, num_items, drawn, tokenizer)
        for step, (tokens_BT, labels_BT, mask_BT) in enumerate(batches):
            loss = taught(input_ids=tokens_BT, labels=labels_BT, attention_mask=mask_BT).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(taught.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            if step % 25 == 24:
                print(f"reading, {stage.titles} titles: step {step + 1}, loss {loss.item():.3f}", flush=True)
    with atomic_write_folder(out) as partial:
        taught.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def _batches(
    stage: Stage, prompts: Sequence[str], lines: Sequence[str], num_items: int, drawn: random.Random, tokenizer: Any
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    for _ in range(stage.steps):
        count, rows = drawn.randint(*stage.titles), []
        for prompt in drawn.sample(prompts, stage.batch):
            titles = drawn.sample(lines, count)
            content = with_candidates(prompt, titles)
            if stage.words:
                # of drawn length: else where a title stands would say where its copy does, and copying is not learned
                said = split_prompt(prompt)[1].split()[-drawn.randint(1, stage.words) :]
                content = "\n".join([*titles, " ".join(said)])
            asked = {"role": "user", "content": content}
            answer = {"role": "assistant", "content": "\n".join(titles[:num_items])}
            before = tokenizer.apply_chat_template([asked], add_generation_prompt=True, tokenize=False)
            whole = tokenizer.apply_chat_template([asked, answer], tokenize=False)
            rows.append((tokenizer(before).input_ids, tokenizer(whole).input_ids))
        longest = max(len(whole) for _, whole in rows)
        tokens, labels, mask = [], [], []
        for before, whole in rows:
            padding = longest - len(whole)
            tokens.append(whole + [0] * padding)
            labels.append([IGNORED] * len(before) + whole[len(before) :] + [IGNORED] * padding)
            mask.append([1] * len(whole) + [0] * padding)
        yield torch.tensor(tokens), torch.tensor(labels), torch.tensor(mask)


def write_demonstrations(data: Path, num_items: int, out: Path) -> None:
    """Write tables for SFT whose lists a teacher who reads the candidates might write.

    Each list is fused with the candidates of its prompt, with equal weights.

    Args:
        data: folder with the tables.
        num_items: length of the lists.
        out: the folder to write.
    """
    with atomic_write_folder(out) as partial:
        for name in ("sft_train", "sft_validation"):
            table = pq.read_table(data / f"{name}.parquet")
            rows = [_fused(row, num_items) for row in table.to_pylist()]
            pq.write_table(pa.Table.from_pylist(rows, table.schema), partial / f"{name}.parquet")


def _fused(row: dict[str, Any], num_items: int) -> dict[str, Any]:
    named = _prompt(row).partition(CANDIDATES_LINE)[2].partition(CONVERSATION_MARKER)[0].splitlines()
    (answer,) = row["completion"]
    written = answer["content"].splitlines()
    lines = [*dict.fromkeys([*written, *named])]
    items = fuse([[lines.index(line) for line in one] for one in (written, named)], (0.5, 0.5), 10)[:num_items]
    return row | {"completion": [answer | {"content": "\n".join(lines[item] for item in items)}]}


def _prompt(row: dict[str, Any]) -> str:
    return row["prompt"][0]["content"]
