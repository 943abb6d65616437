"""What every phase has at hand: where it runs, how it compares, and the models it makes."""

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
TINY = {  # heads of 64 and KV heads shared by two, as Qwen2.5-0.5B has
    "vocab_size": 600,
    "hidden_size": 256,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 512,
}


class CheckFailed(Exception):
    """A phase ran and its numbers are not what they must be."""


@dataclass(frozen=True)
class Machine:
    """folder: for models and files, shared by the phases. model_type: of the models (config.json)."""

    folder: Path
    gpus: int
    model_type: str = "qwen2"

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def dtype(self) -> str:
        """That of the passes: bf16 on a GPU, fp32 on a CPU. Weights that train are fp32 on both."""
        return "bfloat16" if self.gpus else "float32"

    def model(self, sizes: dict[str, int] = TINY, texts: list[str] | None = None, tied: bool | None = None) -> Path:
        """The folder of a random model, made by the first phase that asks for it. tied: the head is the embedding;
        where nothing is said, of all but Llama."""
        tied = self.model_type != "llama" if tied is None else tied
        of = f"{self.model_type}-{sizes['hidden_size']}-{sizes['vocab_size']}"
        folder = self.folder / f"{of}{'' if tied else '-untied'}"
        if not folder.exists():
            shape: dict[str, Any] = {"tie_word_embeddings": tied, "fill_vocab": True, **sizes}
            make_tiny_model(folder, texts or ["a b c\n" * 40], model_type=self.model_type, **shape)
        return folder


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


def require_at_most(name: str, value: float, bound: float) -> None:
    """Raise CheckFailed when `value` is above the bound, or no number."""
    require(value <= bound, f"{name} is {value:.3g}, at most {bound:g} is right")
