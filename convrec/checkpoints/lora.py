"""Merge a LoRA adapter into the weights of its base model, in fp32.

It runs as a child process, so that its memory is freed: python -m convrec.checkpoints.lora BASE ADAPTER TARGET
"""

import sys
from pathlib import Path


def merge(base: str, adapter: str | Path, target: str | Path) -> None:
    """Write a base model with its adapter as one model: W + (alpha / r) B A for every adapted weight.

    Args:
        base: the base model's folder or id.
        adapter: PEFT's folder.
        target: the Hugging Face folder to write, in fp32. It gets the adapter's tokenizer if there is one, else
            the base model's.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    merged.save_pretrained(target)
    # The adapter's own tokenizer may have another chat template than the base model's.
    has_tokenizer = (Path(adapter) / "tokenizer_config.json").exists()
    AutoTokenizer.from_pretrained(adapter if has_tokenizer else base).save_pretrained(target)


if __name__ == "__main__":
    merge(*sys.argv[1:])
