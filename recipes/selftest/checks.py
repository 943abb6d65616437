"""What all phases share: the machine, comparisons, and the models they make."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.tiny_model import make_tiny_model

HALF_B = {  # Qwen2.5-0.5B's config.json
    "vocab_size": 151_936,
    "hidden_size": 896,
    "num_layers": 24,
    "num_heads": 14,
    "num_kv_heads": 2,
    "intermediate_size": 4864,
}
TINY = {  # heads of 64 that share KV heads, as in Qwen2.5-0.5B
    "vocab_size": 600,
    "hidden_size": 256,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 512,
}


class CheckFailed(Exception):
    """A phase ran, and its figures are wrong."""


@dataclass(frozen=True)
class Machine:
    """The machine to check.

    Attributes:
        folder: for models and files, shared by all phases.
        gpus: number of GPUs; 0: phases run on the CPU.
        model_type: of the models, as in config.json.
    """

    folder: Path
    gpus: int
    model_type: str = "qwen2"

    @property
    def device(self) -> str:
        """torch's name of the device."""
        return "cuda" if self.gpus else "cpu"

    @property
    def dtype(self) -> str:
        """Type of forward and backward passes: bf16 on a GPU, fp32 on a CPU. Trained weights are fp32 on both."""
        return "bfloat16" if self.gpus else "float32"

    def make_model(
        self, sizes: dict[str, int] = TINY, texts: list[str] | None = None, tied: bool | None = None
    ) -> Path:
        """Return the folder of a random model, made on the first call.

        Args:
            sizes: of the model, such as TINY and HALF_B.
            texts: for the tokenizer.
            tied: share embeddings between input and output; None: unless the model is a Llama.
        """
        tied = self.model_type != "llama" if tied is None else tied
        name = f"{self.model_type}-{sizes['hidden_size']}-{sizes['vocab_size']}"
        folder = self.folder / f"{name}{'' if tied else '-untied'}"
        if not folder.exists():
            shape: dict[str, Any] = {"tie_word_embeddings": tied, "fill_vocab": True, **sizes}
            make_tiny_model(folder, texts or ["a b c\n" * 40], model_type=self.model_type, **shape)
        return folder


def require(condition: bool, message: str) -> None:
    """Stop the phase unless a condition holds.

    Raises:
        CheckFailed: the condition does not hold; the message is that of the argument.
    """
    if not condition:
        raise CheckFailed(message)


def require_at_most(name: str, value: float, bound: float) -> None:
    """Stop the phase if a figure is too large.

    Args:
        name: of the figure, for the message.
        value: the figure.
        bound: the largest value that passes.

    Raises:
        CheckFailed: the value is above the bound, or NaN.
    """
    require(value <= bound, f"{name} is {value:.3g}, must be at most {bound:g}")
