"""A run with its composed settings, typed and frozen.

verl's own settings are in `Run.verl_config`, which only the adapters to verl read. Other code reads properties.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from omegaconf import DictConfig, OmegaConf

from convrec.base.fields import setting_rows
from convrec.rank_grpo import NAME
from convrec.runs.folder import RL_MODEL, SFT_MODEL, listed
from convrec.settings.judges import PairwiseJudgeConfig, PointwiseJudgeConfig
from convrec.settings.rank_grpo import ALGORITHM_GROUP, RankGRPOConfig
from convrec.settings.sft import SFTConfig
from convrec.settings.training import TrainingConfig

# A constrained run sets it after the trie has been written next to the catalog (recipes.launch.ray_training).
TRIE_KEY = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.constrained_trie"
FILE_KEYS = ("data.train_files", "data.val_files", "convrec.catalog_file", TRIE_KEY)

AUTO = "auto"  # the run chooses the dtype that its machine computes faster

ConfigT = TypeVar("ConfigT", bound=TrainingConfig, covariant=True)


@dataclass(frozen=True)
class Sampling:
    """vLLM's sampling parameters; with temperature 1 and no bounds it samples from the policy's own distribution.

    Attributes:
        temperature: 0 for greedy decoding.
        top_p: probability to keep; 1 keeps all.
        top_k: number of words to keep; -1 keeps all.
    """

    temperature: float
    top_p: float
    top_k: int


@dataclass(frozen=True)
class RolloutCorrection:
    """verl's correction of the difference between the log-probs of rollout and actor.

    Attributes:
        weights: level of the loss's importance weights: token, rank or sequence; None without weights.
        rejection: level at which tokens are rejected; None without rejection.
        bypass: use the rollout's log-probs as those of the old policy.
        loss_type: verl's loss in bypass mode.
    """

    weights: str | None
    rejection: str | None
    bypass: bool
    loss_type: str


@dataclass(frozen=True)
class Sharding:
    """verl's sharding of the trained model over devices.

    Attributes:
        fsdp_size: number of processes that share one copy of the model; -1 means all.
        offloads_parameters: parameters wait in host memory while they are not used.
        offloads_optimizer: the optimizer's state waits in host memory while it is not used.
    """

    fsdp_size: int
    offloads_parameters: bool
    offloads_optimizer: bool


@dataclass(frozen=True)
class RolloutMemory:
    """The settings that determine vLLM's memory.

    Attributes:
        dtype: dtype of the weights.
        max_sequences: number of sequences that are decoded at the same time.
        share: share of a device's memory.
        sleeps: vLLM releases its memory while the run trains.
    """

    dtype: str
    max_sequences: int
    share: float
    sleeps: bool


@dataclass(frozen=True)
class Run(Generic[ConfigT]):
    """A run of a recipe.

    Attributes:
        settings: our settings, of the recipe's class.
        verl_config: the whole composed config, with verl's settings.
    """

    settings: ConfigT
    verl_config: DictConfig

    @classmethod
    def from_config(cls, config: DictConfig) -> "Run[Any]":
        """Return the run of a composed config.

        Raises:
            UserError: the value of a setting is of the wrong kind.
        """
        return Run(read_settings(config), config)

    # ---- the machine ----

    @property
    def uses_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def device(self) -> str:
        """torch's name of the accelerator, or "cpu"."""
        return str(self.verl_config.trainer.device)

    @property
    def gpus_per_node(self) -> int:
        """Number of training devices per node; on a host without a GPU, processes."""
        return int(self.verl_config.trainer.n_gpus_per_node)

    @property
    def num_devices(self) -> int:
        """Number of training devices on all nodes."""
        return self.settings.num_nodes * self.gpus_per_node

    @property
    def folder(self) -> Path:
        """The run's folder, absolute."""
        return Path(self.verl_config.trainer.default_local_dir)

    # ---- model and data files ----

    @property
    def model_key(self) -> str:
        """The config key of the model from which the run starts."""
        return find_model_key(self.verl_config)

    @property
    def files(self) -> dict[str, list[str]]:
        """Config key -> the files that it names; every node reads them."""
        files_by_key = {key: listed(OmegaConf.select(self.verl_config, key)) for key in FILE_KEYS}
        return {key: files for key, files in files_by_key.items() if files}

    def note_contents(self, digests: Mapping[str, str]) -> None:
        """Write the digests of model and data into the config.

        Args:
            digests: key of the config -> digest of the files that it names.
        """
        OmegaConf.update(self.verl_config, "run.contents", dict(digests), force_add=True)

    # ---- the model ----

    @property
    def is_sft(self) -> bool:
        """Whether the run is supervised and has no rollout."""
        return isinstance(self.settings, SFTConfig)

    @property
    def model_section(self) -> DictConfig:
        """The section of verl's config about the model."""
        return self.verl_config.model if self.is_sft else self.verl_config.actor_rollout_ref.model

    @property
    def tokenizer_path(self) -> str | None:
        """Folder or id of the tokenizer; None for the model's own."""
        return self.model_section.get("tokenizer_path")

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template besides the messages."""
        arguments: Any = self.verl_config.data.get("apply_chat_template_kwargs") or {}
        if OmegaConf.is_config(arguments):
            arguments = OmegaConf.to_container(arguments, resolve=True)
        return dict(arguments)

    @property
    def lora_rank(self) -> int:
        """Rank of the trained adapters; 0 if the whole model trains."""
        return int(self.model_section.get("lora_rank") or 0)

    @property
    def recomputes_activations(self) -> bool:
        return bool(self.model_section.enable_gradient_checkpointing)

    @property
    def uses_fused_kernels(self) -> bool:
        """Whether log-probs are computed from hidden states in chunks, without the logits of all tokens."""
        return bool(self.model_section.get("use_fused_kernels"))

    @property
    def sharding(self) -> Sharding:
        engine = self.verl_config.engine if self.is_sft else self.verl_config.actor_rollout_ref.actor.fsdp_config
        return Sharding(
            fsdp_size=int(engine.get("fsdp_size", -1)),
            offloads_parameters=bool(engine.get("param_offload")),
            offloads_optimizer=bool(engine.get("optimizer_offload")),
        )

    # ---- precision ----

    @property
    def passes_dtype_key(self) -> str:
        """The key of the dtype of forward and backward passes."""
        section = "engine" if self.is_sft else "actor_rollout_ref.actor.fsdp_config"
        return f"{section}.mixed_precision.param_dtype"

    @property
    def precision(self) -> str | None:
        """The dtype of the passes and the reason for it; None on a GPU, where it is not chosen."""
        return OmegaConf.select(self.verl_config, "run.precision")

    @property
    def rollout_is_exact(self) -> bool:
        """Whether rollout and actor compute log-probs of the same policy, both in fp32."""
        is_fp32 = (
            str(OmegaConf.select(self.verl_config, self.passes_dtype_key)) in ("fp32", "float32")
            and self.rollout_memory.dtype == "float32"
        )
        is_quantized = bool(self.verl_config.actor_rollout_ref.rollout.get("quantization"))
        # asynchronous rollouts, and those in bypass mode, may be some updates old
        is_current = self.colocates_rollout and not self.rollout_correction.bypass
        return is_fp32 and is_current and not is_quantized

    # ---- the method ----

    @property
    def is_rank_level(self) -> bool:
        """Whether each rank has its own advantage, as in Rank-GRPO, and not only each response."""
        return bool(self.verl_config.algorithm.adv_estimator == NAME)

    @property
    def normalizes_by_std(self) -> bool:
        """Whether advantages are divided by the standard deviation of their group."""
        return bool(self.verl_config.algorithm.get("norm_adv_by_std_in_grpo", True))

    @property
    def rollout_correction(self) -> RolloutCorrection:
        correction = self.verl_config.algorithm.rollout_correction
        return RolloutCorrection(
            weights=correction.rollout_is,
            rejection=correction.get("rollout_rs"),
            bypass=bool(correction.get("bypass_mode")),
            loss_type=str(correction.get("loss_type")),
        )

    @property
    def group_filter(self) -> str | None:
        """The metric by which prompts with equal rollouts are replaced; None if they are kept."""
        groups = self.verl_config.algorithm.filter_groups
        return str(groups.metric) if groups.enable else None

    @property
    def trains_critic(self) -> bool:
        """Whether verl would also train a critic."""
        critic = self.verl_config.critic.enable
        return bool(critic) or (critic is None and self.verl_config.algorithm.adv_estimator == "gae")

    @property
    def has_colocated_reward_model(self) -> bool:
        """Whether a reward model shares the rollout's devices, so that it only scores after all responses are done."""
        model = self.verl_config.reward.reward_model
        return bool(model.enable) and not model.enable_resource_pool

    @property
    def trainer_mode(self) -> str:
        """verl's name of the trainer; NAME if a step samples and then trains on the same devices."""
        return str(self.verl_config.trainer.v1.trainer_mode)

    @property
    def actor_strategy(self) -> str:
        """verl's strategy of sharding the actor."""
        return str(self.verl_config.actor_rollout_ref.actor.strategy)

    @property
    def sequence_parallel_keys(self) -> list[str]:
        """Keys of verl's settings that split responses between processes; [] if none does."""
        parts = ("actor", "actor.fsdp_config", "ref", "ref.fsdp_config")
        keys = [f"actor_rollout_ref.{part}.ulysses_sequence_parallel_size" for part in parts]
        return [key for key in keys if (OmegaConf.select(self.verl_config, key) or 1) > 1]

    @property
    def reward_module(self) -> str:
        """The module of the reward function: pkg://module, or a file."""
        return str(self.verl_config.reward.custom_reward_function.path)

    @property
    def reward_function(self) -> str:
        """The name of the reward function in its module."""
        return str(self.verl_config.reward.custom_reward_function.name)

    @property
    def mini_batch_size(self) -> int:
        """Number of prompts per update."""
        return int(self.verl_config.actor_rollout_ref.actor.ppo_mini_batch_size)

    @property
    def has_reference(self) -> bool:
        """Whether the loss has a KL term to a frozen copy of the initial model."""
        return not self.is_sft and bool(self.verl_config.actor_rollout_ref.actor.use_kl_loss)

    @property
    def save_keep(self) -> int | None:
        """Number of newest checkpoints that are kept; None means all."""
        key = "trainer.max_ckpt_to_keep" if self.is_sft else "trainer.max_actor_ckpt_to_keep"
        return OmegaConf.select(self.verl_config, key)

    @property
    def max_training_rows(self) -> int:
        """Maximum number of rows read from the training files; -1 means all."""
        return int(self.verl_config.data.get("train_max_samples", -1))

    @property
    def max_validation_rows(self) -> int:
        """Maximum number of rows read from the validation files; -1 means all."""
        return int(self.verl_config.data.get("val_max_samples", -1))

    @property
    def trackers(self) -> list[str]:
        """Names of verl's trackers."""
        logger = self.settings.logger
        return [logger] if isinstance(logger, str) else logger

    @property
    def train_batch_size(self) -> int:
        """Sequences (SFT) or prompts (RL) per step."""
        return int(self.verl_config.data.train_batch_size)

    # ---- rollouts ----

    @property
    def rollout_engine(self) -> str:
        """The engine that samples; conf/ has vllm."""
        return str(self.verl_config.actor_rollout_ref.rollout.name)

    @property
    def samples_single_turns(self) -> bool:
        """Whether prompts are sampled by verl's agent loop without tools, which ours replaces."""
        return bool(self.verl_config.actor_rollout_ref.rollout.agent.default_agent_loop == "single_turn_agent")

    @property
    def is_fully_deterministic(self) -> bool:
        """Whether verl's own full determinism is on; `deterministic` is a different, weaker setting of convrec."""
        return bool(self.verl_config.actor_rollout_ref.rollout.full_determinism)

    @property
    def replays_routing(self) -> bool:
        """Whether a mixture of experts trains with the rollout's choice of experts."""
        return bool(self.verl_config.actor_rollout_ref.rollout.enable_rollout_routing_replay)

    @property
    def keeps_processed_log_probs(self) -> bool:
        """Whether the rollout returns the log-probs of its samples after its logits processors."""
        rollout = self.verl_config.actor_rollout_ref.rollout
        return bool(rollout.calculate_log_probs and rollout.logprobs_mode == "processed_logprobs")

    @property
    def response_length(self) -> int:
        """Maximum number of tokens of a response."""
        return int(self.verl_config.actor_rollout_ref.rollout.response_length)

    @property
    def sampling(self) -> Sampling:
        rollout = self.verl_config.actor_rollout_ref.rollout
        return Sampling(rollout.temperature, rollout.top_p, rollout.top_k)

    @property
    def tensor_parallel(self) -> int:
        """Number of devices per rollout replica."""
        return int(self.verl_config.actor_rollout_ref.rollout.tensor_model_parallel_size)

    @property
    def weight_transfer(self) -> str:
        """verl's name of the transport of new weights to the rollout."""
        return str(self.verl_config.actor_rollout_ref.rollout.checkpoint_engine.backend)

    @property
    def colocates_rollout(self) -> bool:
        """Whether rollout and training share their devices; True for SFT, which has no rollout."""
        return not str(OmegaConf.select(self.verl_config, "trainer.v1.trainer_mode")).endswith("separate_async")

    @property
    def rollout_devices(self) -> tuple[int, int]:
        """Number of nodes with a separate rollout, and its devices per node; (0, 0) if the rollout shares devices."""
        if self.colocates_rollout:
            return 0, 0
        rollout = self.verl_config.actor_rollout_ref.rollout
        return rollout.nnodes, rollout.n_gpus_per_node

    @property
    def rollout_memory(self) -> RolloutMemory:
        rollout = self.verl_config.actor_rollout_ref.rollout
        return RolloutMemory(
            dtype=str(rollout.dtype),
            max_sequences=int(rollout.max_num_seqs),
            share=float(rollout.gpu_memory_utilization),
            sleeps=bool(rollout.free_cache_engine),
        )

    @property
    def storage_units(self) -> int:
        """Number of TransferQueue's storage processes."""
        key = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
        return OmegaConf.select(self.verl_config, key) or 1

    # ---- micro-batches ----

    @property
    def packs_micro_batches(self) -> bool:
        """Whether micro-batches have a limited number of tokens, not a fixed number of sequences."""
        section = self.verl_config.data if self.is_sft else self.verl_config.actor_rollout_ref.actor
        return bool(section.use_dynamic_bsz)

    @property
    def pads_micro_batches(self) -> bool:
        """Whether the sequences of a micro-batch are padded to the same length, and not packed."""
        return not self.model_section.get("use_remove_padding", True)

    @property
    def sequence_parallel_size(self) -> int:
        """Number of processes between which verl splits a sequence."""
        if self.is_sft:
            return int(self.verl_config.engine.ulysses_sequence_parallel_size)
        actor = self.verl_config.actor_rollout_ref.actor
        return max(actor.ulysses_sequence_parallel_size, actor.fsdp_config.ulysses_sequence_parallel_size)

    @property
    def micro_batch_key(self) -> str:
        """The config key of the maximum number of tokens of a micro-batch."""
        if self.is_sft:
            return "data.max_token_len_per_gpu"
        return "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"

    @property
    def micro_batch_rows(self) -> int:
        """Number of sequences of a micro-batch, if it is fixed."""
        if self.is_sft:
            return int(self.verl_config.data.micro_batch_size_per_gpu)
        return int(self.verl_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu or 1)

    @property
    def micro_batch_tokens(self) -> int:
        """Maximum number of tokens of a micro-batch, over all processes that share a sequence."""
        return int(OmegaConf.select(self.verl_config, self.micro_batch_key)) * self.sequence_parallel_size


def find_model_key(config: DictConfig) -> str:
    """Return the config key of the model from which a run starts."""
    return RL_MODEL if "actor_rollout_ref" in config else SFT_MODEL


def read_settings(config: DictConfig) -> Any:
    """Return our settings of a composed config, as the class of its recipe; missing ones have their defaults.

    Raises:
        UserError: the value of a setting is of the wrong kind.
    """
    settings = _choose_class(config)
    values = {}
    for row in setting_rows(settings).values():
        key = "run.algorithm" if row.keys == (ALGORITHM_GROUP,) else row.keys[0]
        value = OmegaConf.select(config, key, default=...)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        if value is not ...:
            values[row.field] = value
    return settings(**values)


def _choose_class(config: DictConfig) -> type[TrainingConfig]:
    """Choose the class by settings that only one class has, because a recipe may have any name."""
    if "actor_rollout_ref" not in config:
        return SFTConfig
    ours = config.get("convrec") or {}
    if "orders" in ours:
        return PairwiseJudgeConfig
    return PointwiseJudgeConfig if "malformed_reward" in ours else RankGRPOConfig
