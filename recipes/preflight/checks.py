"""Checks of a recipe's settings and data, before anything expensive starts. An error names the setting and the fix."""

import importlib
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from convrec.base import gpus, kinds
from convrec.base.errors import UserError
from convrec.checkpoints import hub
from convrec.checkpoints.architecture import check_architecture
from convrec.checkpoints.files import check_hugging_face
from convrec.checkpoints.logits import check_logits, model_settings
from convrec.data.schema import is_demonstration_table
from convrec.data.validation import TableReport, validate_rl_table, validate_sft_table
from convrec.features.candidates import checks as candidates
from convrec.features.registry import active_features
from convrec.lists import user_rewards
from convrec.lists.rank_rewards import RANK_REWARDS
from convrec.runs.folder import listed
from convrec.settings.judges import JudgeConfig
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.settings.sft import SFTConfig
from convrec.settings.training import RLConfig, TrainingConfig
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.item import format_item
from convrec.titles.matching import FUZZY, MATCHERS
from recipes.planning import memory
from recipes.preflight import precision, pretrained
from recipes.preflight.batch import check_batch, check_heads, check_micro_batch


def check_rank_grpo(run: Run[RankGRPOConfig]) -> list[str]:
    """Check the settings and data of a Rank-GRPO run; complete its config (chat template, precision, micro-batch).

    Returns:
        Warnings about settings and data that can train but look wrong.

    Raises:
        UserError: the settings or data cannot train.
    """
    settings = run.settings
    check_rl(run)
    require_files(run.settings)
    _check_rank_reward(settings)
    _check_rollout_correction(run)
    _check_dynamic_sampling(run)
    _check_text_only(settings)
    catalog_file = settings.catalog_file
    catalog = load_catalog(catalog_file)
    if MATCHERS[settings.matching].needs_years and not catalog.dated:
        raise UserError(
            "preflight.catalog-without-years",
            f"convrec.matching={settings.matching} needs years, and {catalog_file} has none: use "
            "convrec.matching=fuzzy (PRESET=reference sets it to reference)",
        )
    warnings = check_tables(run, partial(validate_rl_table, dated=catalog.dated))
    warnings += _check_candidates(settings)
    warnings += pretrained.prepare(run, catalog.titles)
    warnings += _check_list_length(run, catalog)
    precision.set_precision(run)
    warnings += memory.fit_micro_batch(run)
    for feature in active_features(run):
        warnings += feature.check(catalog)
    for sentences in (catalog.problems, catalog.spellings() if settings.matching in FUZZY else []):
        warnings += [f"{catalog_file}: {sentence}" for sentence in sentences[:5]]
        if len(sentences) > 5:
            warnings.append(f"{catalog_file}: {len(sentences) - 5} more such entries")
    return warnings


def _check_list_length(run: Run[RankGRPOConfig], catalog: Catalog) -> list[str]:
    """Return a warning if an average list of catalog items is longer than a response; skipped if the model still has
    to be downloaded."""
    settings = run.settings
    num_items = settings.num_items
    max_tokens = settings.max_response_length
    file = Path(run.tokenizer_path or settings.model) / "tokenizer.json"
    if not file.is_file():
        return []
    items = zip(catalog.titles, catalog.years, strict=True)
    lines = [format_item(title, year) + settings.delimiter for title, year in items if year is not None]
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokens = [len(line.ids) for line in tokenizer.encode_batch_fast(lines, add_special_tokens=False)]
    average_length = round(num_items * sum(tokens) / len(tokens))
    if average_length <= max_tokens:
        return []
    max_length = sum(sorted(tokens)[-num_items:])
    return [
        f"MAX_RESPONSE_LENGTH={max_tokens}: a list of {num_items} items takes {average_length} tokens on average, so "
        f"most lists are cut off. {max_length} tokens hold any list from {settings.catalog_file}"
    ]


def _check_rank_reward(settings: RankGRPOConfig) -> None:
    """Check that the rank reward has its parameters; call a custom one once."""
    if user_rewards.is_user_reward(settings.reward):
        user_rewards.check(settings.reward, settings.num_items)
        return
    for name, kind in RANK_REWARDS[settings.reward].parameters.items():
        value = getattr(settings, name)
        if not kinds.is_valid(kind, value):
            raise UserError(
                "preflight.reward-parameter",
                f"convrec.{name}={kinds.to_yaml_scalar(value)}: REWARD={settings.reward} needs "
                f"{kinds.describe_type(kind)}",
            )


def _check_rollout_correction(run: Run[RankGRPOConfig]) -> None:
    """Check that Rank-GRPO's loss applies the correction: weights per token, rank or sequence, or verl's bypass."""
    key = "algorithm.rollout_correction"
    correction = run.rollout_correction
    if not run.is_rank_level:
        if correction.weights == "rank":
            raise UserError(
                "preflight.rollout-correction",
                f"{key}.rollout_is=rank: GRPO and GSPO have no ranks: use token or sequence",
            )
        return
    if correction.rejection is not None:
        raise UserError(
            "preflight.rollout-correction",
            f"{key}.rollout_rs={correction.rejection}: rejection removes tokens from verl's response mask. The loss of "
            "Rank-GRPO does not read this mask, so rejected tokens would still train: use null, or rollout_is",
        )
    if correction.weights not in (None, "token", "rank", "sequence"):
        raise UserError(
            "preflight.rollout-correction",
            f"{key}.rollout_is={correction.weights}: expected token, rank, sequence or null",
        )
    if correction.bypass and correction.weights is not None:
        raise UserError(
            "preflight.rollout-correction",
            f"{key}.rollout_is={correction.weights}: with bypass_mode=true the ratio already compares the policy with "
            "the rollout, so these weights would all be 1: use one of the two",
        )
    if correction.bypass and correction.loss_type != "ppo_clip":
        raise UserError(
            "preflight.rollout-correction",
            f"{key}.loss_type={correction.loss_type}: Rank-GRPO has its own loss: leave it at ppo_clip",
        )


def _check_dynamic_sampling(run: Run[RankGRPOConfig]) -> None:
    """Check the metric by which verl drops prompts whose rollouts all score the same.

    Equal scores must mean that no rank has a signal. This holds for DCG@N: of the 21,700 lists of 20 with at most five
    hits, only three pairs have the same DCG@N in float32.
    """
    key = "algorithm.filter_groups"
    metric = run.group_filter
    if metric is None or not run.is_rank_level:
        return
    if metric not in ("reward", "score", "dcg"):  # three names for DCG@N
        raise UserError(
            "preflight.group-filter",
            f"{key}.metric={metric}: rollouts with equal {metric} can differ in their ranks, so prompts with a signal "
            "would be dropped: use reward, which is DCG@N",
        )
    if run.settings.rewards is not None or user_rewards.is_user_reward(run.settings.reward):
        raise UserError(
            "preflight.group-filter",
            f"{key}.enable=true: verl compares DCG@N, which does not cover REWARDS or a custom reward, so prompts "
            f"with a signal would be dropped: set {key}.enable=false",
        )


def _check_text_only(settings: RankGRPOConfig) -> None:
    """Refuse vision models for constrained lists and questions, which need the tokenizer, not verl's processor."""
    path = settings.model
    folder = hub.local_folder(path)
    if folder is None or "vision_config" not in model_settings(str(folder)):
        return
    for setting, is_on in (("CONSTRAINED=1", settings.constrained), ("ASK", settings.ask)):
        if is_on:
            raise UserError(
                "preflight.vision-model",
                f"{setting}: MODEL_PATH={path} reads images (vision_config): use a text-only model",
            )


def check_rl(run: Run[RLConfig]) -> None:
    """Check the settings that every RL recipe has, for lists and for judges.

    Raises:
        UserError: they cannot train.
    """
    settings = run.settings
    _check_reward_function(run.reward_module, run.reward_function)
    _check_extra_models(run)
    sampling = run.sampling
    if sampling.temperature != 1.0 or sampling.top_p != 1.0 or sampling.top_k not in (-1, 0):
        raise UserError(
            "preflight.sampling-parameters",
            f"actor_rollout_ref.rollout: temperature={sampling.temperature}, top_p={sampling.top_p}, "
            f"top_k={sampling.top_k} sample from another distribution than the policy, which biases the importance "
            "ratio: use temperature=1 top_p=1 top_k=-1",
        )
    if settings.num_generations < 2:
        raise UserError(
            "preflight.too-few-rollouts",
            f"ROLLOUT_N={settings.num_generations}: advantages compare the rollouts of a prompt: use at least 2",
        )
    _check_devices(run)
    check_batch(run)
    lengths = {
        "MAX_PROMPT_LENGTH": settings.max_prompt_length,
        "MAX_RESPONSE_LENGTH": settings.max_response_length,
    }
    if run.uses_fused_kernels:
        _check_fused_kernels(run)
    if run.packs_micro_batches:
        check_micro_batch(lengths, run.micro_batch_key, run.micro_batch_tokens)
    _check_model(settings.model, lengths, run.tensor_parallel)
    if run.weight_transfer == "nccl" and not find_spec("cupy"):
        raise UserError(
            "preflight.missing-cupy",
            "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl (+scale=separate_async): weights are sent with "
            "cupy, which is not installed here: pip install cupy-cuda13x==14.0.1, or all of `convrec[gpu]`",
        )


def _check_fused_kernels(run: Run[RLConfig]) -> None:
    instead = "add actor_rollout_ref.model.use_fused_kernels=false"
    check_logits(run.model_section, "fused log-probs", instead)
    if run.sequence_parallel_size > 1:
        raise UserError(
            "preflight.sequence-parallel",
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={run.sequence_parallel_size} splits responses "
            f"between devices, but fused log-probs need whole responses: {instead}",
        )


def _check_extra_models(run: Run[RLConfig]) -> None:
    """Refuse a critic, and a reward model that shares the rollout's devices: the training loop has neither."""
    if run.trains_critic:
        raise UserError(
            "preflight.critic",
            "critic.enable=true (or algorithm.adv_estimator=gae): advantages compare the rollouts of a prompt, and no "
            "critic is trained: keep the defaults of both settings",
        )
    if run.has_colocated_reward_model:
        raise UserError(
            "preflight.colocated-reward-model",
            "reward.reward_model.enable=true: a reward model on the rollout's own devices scores too late for lists: "
            "add reward.reward_model.enable_resource_pool=true, or set reward.custom_reward_function",
        )


def _check_reward_function(path: str, name: str) -> None:
    """Check that verl's workers can load the reward function, from `pkg://module` or a file."""
    key = "reward.custom_reward_function"
    if not path.startswith("pkg://"):  # each of verl's workers executes the file itself
        if not Path(path.removeprefix("file://")).is_file():
            raise UserError(
                "preflight.reward-function",
                f"{key}.path={path}: no such file: give pkg://package.module or a .py file",
            )
        return
    try:
        module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
    except ImportError as error:
        raise UserError(
            "preflight.reward-function",
            f"{key}.path={path}: {error}: give pkg://package.module or a .py file",
        ) from error
    if not callable(getattr(module, name, None)):
        raise UserError("preflight.reward-function", f"{key}.name={name}: {path} has no such function")


def check_sft(run: Run[SFTConfig]) -> list[str]:
    """Check the settings and data of an SFT run, and choose what depends on the machine.

    The dtype of the passes and a smaller micro-batch are written into the run's config, in place.

    Returns:
        Warnings.

    Raises:
        UserError: a setting or a file is wrong; the message names it and the fix.
    """
    settings = run.settings
    _check_devices(run)
    check_batch(run)
    lengths = {"MAX_LENGTH": settings.max_length}
    if run.packs_micro_batches:
        check_micro_batch(lengths, run.micro_batch_key, run.micro_batch_tokens)
    _check_model(settings.model, lengths)
    require_files(settings)
    warnings = check_tables(run, validate_sft_table)
    warnings += _check_candidates(settings)
    rows = sum(pq.read_metadata(path).num_rows for path in listed(settings.val_file))
    if 0 < rows < run.num_devices:
        raise UserError(
            "preflight.too-few-rows",
            f"VAL_FILE has {rows} rows, fewer than the {run.num_devices} devices (N_GPUS_PER_NODE x N_NODES) that "
            "share them: add rows, or use fewer devices",
        )
    are_lists = not all(map(is_demonstration_table, listed(settings.train_file)))  # else a judge's verdicts
    warnings += pretrained.prepare(run, lists=are_lists)
    precision.set_precision(run)
    return [*warnings, *memory.fit_micro_batch(run)]


def _check_devices(run: Run[TrainingConfig]) -> None:
    """Check that this machine has the devices of the run; a cluster's nodes are checked once Ray is connected."""
    if os.environ.get("RAY_ADDRESS"):
        return
    if not run.uses_gpu and not run.is_sft:
        gpus.check_vllm_runs_on_cpu()
    if run.settings.num_nodes > 1:
        raise UserError(
            "preflight.no-cluster",
            f"N_NODES={run.settings.num_nodes}: several nodes need a Ray cluster: set RAY_ADDRESS, or unset N_NODES",
        )
    if not run.uses_gpu:
        return
    present = gpus.usable_gpus()
    rollout_nodes, rollout_gpus = run.rollout_devices
    if run.gpus_per_node + rollout_nodes * rollout_gpus > present:
        rollout = ""
        if rollout_nodes:
            key = "actor_rollout_ref.rollout.n_gpus_per_node"
            rollout = f" and {rollout_nodes} x {rollout_gpus} for the rollout ({key})"
        raise UserError(
            "preflight.too-few-gpus",
            f"N_GPUS_PER_NODE={run.gpus_per_node}{rollout}: this machine has {present} GPUs: lower it, or set "
            "RAY_ADDRESS to train on a cluster",
        )


def _check_model(model_path: str, lengths: dict[str, int], tensor_parallel: int = 1) -> None:
    """Check the model's files, architecture, positions and attention heads; skipped if it still has to be downloaded.

    lengths: variable -> tokens; a sequence has at most their sum.
    """
    if hub.is_folder(model_path):
        check_hugging_face(Path(model_path))
    if folder := hub.local_folder(model_path):
        check_architecture(folder, f"MODEL_PATH={model_path}")
    settings = model_settings(model_path)
    check_heads(settings.get("num_attention_heads", 0), tensor_parallel, model_path)
    limit = settings.get("max_position_embeddings")
    if limit and sum(lengths.values()) > limit:
        sequence = " + ".join(f"{name}={value}" for name, value in lengths.items())
        raise UserError(
            "preflight.sequence-too-long",
            f"{sequence}: more tokens than the {limit} positions of {model_path}: lower them",
        )


def check_tables(run: Run[TrainingConfig], validate: Callable[[str], TableReport]) -> list[str]:
    """Check the rows of TRAIN_FILE and VAL_FILE, and that there is at least one batch of them.

    Args:
        run: names the files and the batch size.
        validate: checks one file; raises UserError for rows that cannot train.

    Returns:
        The warnings of `validate`.

    Raises:
        UserError: rows cannot train, or there are fewer than one batch.
    """
    warnings: list[str] = []
    rows = 0
    for path in listed(run.settings.train_file):
        report = validate(path)
        rows += report.rows
        warnings += report.warnings
    size = run.train_batch_size
    if 0 < run.max_training_rows < min(rows, size):
        raise UserError(
            "preflight.too-few-rows",
            f"data.train_max_samples={run.max_training_rows}: fewer rows than TRAIN_BATCH_SIZE={size}: raise it",
        )
    if rows < size:
        raise UserError(
            "preflight.too-few-rows",
            f"TRAIN_FILE has {rows} rows, fewer than TRAIN_BATCH_SIZE={size}: lower the batch size",
        )
    for path in listed(run.settings.val_file):
        warnings += validate(path).warnings
    return warnings


def _check_candidates(settings: RankGRPOConfig | SFTConfig) -> list[str]:
    """Return warnings about tables whose prompts name fewer candidates than CANDIDATES."""
    warnings: list[str] = []
    for path in listed(settings.val_file):
        warnings += candidates.check(settings.candidates, [path, *listed(settings.train_file)])
    return warnings


def require_files(settings: TrainingConfig) -> None:
    """Check that the run's data files exist.

    Raises:
        UserError: files are missing; the message names all of them.
    """
    maker = "data judge-sample" if isinstance(settings, JudgeConfig) else "data sample"
    files = {"TRAIN_FILE": settings.train_file, "VAL_FILE": settings.val_file}
    if isinstance(settings, RankGRPOConfig):
        files["CATALOG_FILE"] = settings.catalog_file
    missing = [(name, path) for name, paths in files.items() for path in listed(paths) if not Path(path).is_file()]
    if missing:
        problems = "; ".join(f"{name}={path}: no such file" for name, path in missing)
        raise UserError("preflight.missing-file", f"{problems}. Name one, or make sample data: convrec {maker}")
