"""What a recipe checks before anything expensive starts. Each failure names the variable, file or row and the fix."""

import importlib
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer

from convrec import gpus, kinds
from convrec.checkpoints import hub
from convrec.checkpoints.architecture import check_architecture
from convrec.checkpoints.files import check_hugging_face
from convrec.checkpoints.logits import check_logits, model_settings
from convrec.data.schema import is_demonstration_table
from convrec.data.validation import TableReport, validate_rl_table, validate_sft_table
from convrec.errors import UserError
from convrec.features.candidates import checks as candidates
from convrec.features.registry import active_features
from convrec.lists import user_rewards
from convrec.lists.catalog import Catalog, load_catalog
from convrec.lists.matching import FUZZY, MATCHERS
from convrec.lists.rank_rewards import RANK_REWARDS
from convrec.lists.ranks import format_item
from convrec.rank_grpo import NAME
from convrec.runs.folder import listed
from recipes.preflight import pretrained
from recipes.preflight.batch import check_batch, check_heads, check_micro_batch
from recipes.preflight.cores import rollout_devices


def check_rank_grpo(config: DictConfig) -> list[str]:
    """Raise UserError for settings or data that cannot train; return warnings for what can but looks wrong."""
    check_rl(config)
    require_files(config)
    ours = config.convrec
    _check_rank_reward(ours)
    _check_rollout_correction(config.algorithm)
    _check_dynamic_sampling(config)
    _check_text_only(config)
    catalog_file = ours.catalog_file
    catalog = load_catalog(catalog_file)
    if MATCHERS[ours.matching].needs_years and not catalog.dated:
        raise UserError(
            f"{catalog_file}: no years, which convrec.matching={ours.matching} (PRESET=reference sets it to reference) "
            "needs: use convrec.matching=fuzzy"
        )
    warnings = check_tables(config, partial(validate_rl_table, dated=catalog.dated))
    warnings += pretrained.prepare(config, catalog.titles)
    warnings += _check_list_length(config, catalog)
    for feature in active_features(config):
        warnings += feature.check(catalog)
    for sentences in (catalog.problems, catalog.spellings() if ours.matching in FUZZY else []):
        warnings += [f"{catalog_file}: {sentence}" for sentence in sentences[:5]]
        if len(sentences) > 5:
            warnings.append(f"{catalog_file}: {len(sentences) - 5} more such entries")
    return warnings


def _check_list_length(config: DictConfig, catalog: Catalog) -> list[str]:
    """A warning where a usual list of the catalog is longer than a response. A model that is still to be downloaded is
    not looked into."""
    model, most, num_items = config.actor_rollout_ref.model, config.data.max_response_length, config.convrec.num_items
    file = Path(model.get("tokenizer_path") or model.path) / "tokenizer.json"
    if not file.is_file():
        return []
    items = zip(catalog.titles, catalog.years, strict=True)
    lines = [format_item(title, year) + config.convrec.delimiter for title, year in items if year is not None]
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokens = [len(line.ids) for line in tokenizer.encode_batch_fast(lines, add_special_tokens=False)]
    usual = round(num_items * sum(tokens) / len(tokens))
    if usual <= most:
        return []
    longest = sum(sorted(tokens)[-num_items:])
    return [
        f"MAX_RESPONSE_LENGTH={most}: a list of {num_items} items takes {usual} tokens in the mean, so that most are "
        f"broken off; {longest} hold every list of {config.convrec.catalog_file}"
    ]


def _check_rank_reward(ours: DictConfig) -> None:
    """The rank reward has its parameters; one of the user's own is imported and tried out."""
    if user_rewards.is_user_reward(ours.reward):
        user_rewards.check(ours.reward, ours.num_items)
        return
    for name, kind in RANK_REWARDS[ours.reward].parameters.items():
        if not kinds.fits(kind, ours[name]):
            value = kinds.shown(ours[name])
            raise UserError(f"REWARD={ours.reward} needs convrec.{name}, {kinds.wanted(kind)}, not {value}")


def _check_rollout_correction(algorithm: DictConfig) -> None:
    """verl's corrections that Rank-GRPO's loss applies are weights by token, rank or sequence, and its bypass mode."""
    key, correction = "algorithm.rollout_correction", algorithm.rollout_correction
    if algorithm.adv_estimator != NAME:
        if correction.rollout_is == "rank":
            raise UserError(f"{key}.rollout_is=rank: GRPO and GSPO have no ranks; take token or sequence")
        return
    if correction.rollout_rs is not None:
        raise UserError(
            f"{key}.rollout_rs={correction.rollout_rs}: it takes tokens out of verl's response mask, which the loss of "
            "Rank-GRPO does not read, so that they would train all the same: use null, or rollout_is"
        )
    if correction.rollout_is not in (None, "token", "rank", "sequence"):
        raise UserError(f"{key}.rollout_is={correction.rollout_is}: expected token, rank, sequence or null")
    if correction.bypass_mode and correction.rollout_is is not None:
        raise UserError(
            f"{key}: bypass_mode compares the policy with the rollout itself, so that "
            f"rollout_is={correction.rollout_is} would weight by nothing: use one of the two"
        )
    if correction.bypass_mode and correction.loss_type != "ppo_clip":
        raise UserError(f"{key}.loss_type={correction.loss_type}: Rank-GRPO has a loss of its own; leave it ppo_clip")


def _check_dynamic_sampling(config: DictConfig) -> None:
    """verl draws another prompt where all rollouts have one number, which must say whether any rank has signal.

    DCG@N does: of all lists of 20 with at most five hits, 21,700, only three pairs share it in float32.
    """
    key, groups, ours = "algorithm.filter_groups", config.algorithm.filter_groups, config.convrec
    if not groups.enable or config.algorithm.adv_estimator != NAME:
        return
    if groups.metric not in ("reward", "score", "dcg"):  # one number by three names
        raise UserError(
            f"{key}.metric={groups.metric}: rollouts can differ in their ranks where they are equal in it, and would "
            "be thrown away: use reward, which is DCG@N"
        )
    if ours.rewards is not None or user_rewards.is_user_reward(ours.reward):
        raise UserError(
            f"{key}: verl compares DCG@N, which says nothing about REWARDS or a reward of your own, so that prompts "
            f"with signal would be thrown away: leave {key}.enable=false"
        )


def _check_text_only(config: DictConfig) -> None:
    """A model with images is read through a processor, which knows neither the catalog's trie nor a turn's question."""
    path = config.actor_rollout_ref.model.path
    folder = hub.local_folder(path)
    if folder is None or "vision_config" not in model_settings(str(folder)):
        return
    for setting, is_on in (("CONSTRAINED=1", config.convrec.constrained), ("ASK", config.convrec.ask)):
        if is_on:
            raise UserError(f"{setting}: MODEL_PATH={path} reads images (vision_config); take a model of text alone")


def check_rl(config: DictConfig) -> None:
    """Raise UserError for settings that no RL recipe can train with."""
    _check_reward_function(config.reward.custom_reward_function)
    _check_verls_models(config)
    rollout = config.actor_rollout_ref.rollout
    if rollout.temperature != 1.0 or rollout.top_p != 1.0 or rollout.top_k not in (-1, 0):
        raise UserError(
            f"actor_rollout_ref.rollout: temperature={rollout.temperature}, top_p={rollout.top_p}, "
            f"top_k={rollout.top_k} sample from another distribution than the policy, which biases the importance "
            "ratio: use temperature=1 top_p=1 top_k=-1"
        )
    if rollout.n < 2:
        raise UserError(f"ROLLOUT_N={rollout.n}: advantages compare the rollouts of a prompt, so at least 2 are needed")
    check_batch(config, _check_devices(config))
    lengths = {
        "MAX_PROMPT_LENGTH": config.data.max_prompt_length,
        "MAX_RESPONSE_LENGTH": config.data.max_response_length,
    }
    actor, key = config.actor_rollout_ref.actor, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    devices = max(actor.ulysses_sequence_parallel_size, actor.fsdp_config.ulysses_sequence_parallel_size)
    if config.actor_rollout_ref.model.use_fused_kernels:
        instead = "add actor_rollout_ref.model.use_fused_kernels=false"
        check_logits(config.actor_rollout_ref.model, "fused log-probs", instead)
        if devices > 1:
            raise UserError(
                f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={devices} cuts responses, which fused "
                f"log-probs read whole: {instead}"
            )
    if actor.use_dynamic_bsz:
        check_micro_batch(lengths, key, actor.ppo_max_token_len_per_gpu * devices)
    _check_model(config.actor_rollout_ref.model.path, lengths, rollout.tensor_model_parallel_size)
    if rollout.checkpoint_engine.backend == "nccl" and not find_spec("cupy"):
        raise UserError(
            "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl (+scale=separate_async): weights go through "
            "cupy, which is not installed here: pip install cupy-cuda13x==14.0.1, or all of `convrec[gpu]`"
        )


def _check_verls_models(config: DictConfig) -> None:
    """The training loop has neither a critic nor a reward model that waits for the rollout's devices."""
    if config.critic.enable or (config.critic.enable is None and config.algorithm.adv_estimator == "gae"):
        raise UserError(
            "critic.enable=true (or algorithm.adv_estimator=gae): rollouts of a prompt are compared with each other "
            "here, and no critic is trained: leave both as they are"
        )
    model = config.reward.reward_model
    if model.enable and not model.enable_resource_pool:
        raise UserError(
            "reward.reward_model.enable=true: a reward model on the rollout's own devices scores too late for lists; "
            "add reward.reward_model.enable_resource_pool=true, or give reward.custom_reward_function"
        )


def _check_reward_function(function: DictConfig) -> None:
    """verl's workers will find it, as `pkg://module` or a file, and it is a function."""
    key = "reward.custom_reward_function"
    path, name = str(function.path), str(function.name)
    if not path.startswith("pkg://"):  # verl runs it, once in each of its workers
        if not Path(path.removeprefix("file://")).is_file():
            raise UserError(f"{key}.path={path}: no such file; give pkg://package.module or a .py file")
        return
    try:
        module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
    except ImportError as error:
        raise UserError(f"{key}.path={path}: {error}; give pkg://package.module or a .py file") from error
    if not callable(getattr(module, name, None)):
        raise UserError(f"{key}.name={name}: {path} has no such function")


def check_sft(config: DictConfig) -> list[str]:
    """As `check_rank_grpo`, for SFT."""
    devices = _check_devices(config)
    check_batch(config, devices)
    lengths, key = {"MAX_LENGTH": config.data.max_length}, "data.max_token_len_per_gpu"
    if config.data.use_dynamic_bsz:
        tokens = config.data.max_token_len_per_gpu * config.engine.ulysses_sequence_parallel_size
        check_micro_batch(lengths, key, tokens)
    _check_model(config.model.path, lengths)
    require_files(config)
    warnings = check_tables(config, validate_sft_table)
    rows = sum(pq.read_metadata(path).num_rows for path in listed(config.data.val_files))
    if 0 < rows < devices:
        raise UserError(
            f"VAL_FILE has {rows} rows, fewer than the {devices} devices (N_GPUS_PER_NODE x N_NODES) that share them: "
            "add rows, or use fewer devices"
        )
    are_lists = not all(map(is_demonstration_table, listed(config.data.train_files)))  # else verdicts of a judge
    return warnings + pretrained.prepare(config, lists=are_lists)


def _check_devices(config: DictConfig) -> int:
    wanted, on_cluster = config.trainer.n_gpus_per_node, os.environ.get("RAY_ADDRESS")
    if config.trainer.device == "cpu" and "actor_rollout_ref" in config and not on_cluster:
        gpus.check_vllm_runs_on_cpu()
    if config.trainer.nnodes > 1 and not on_cluster:
        raise UserError(
            f"N_NODES={config.trainer.nnodes}: more than this node are a Ray cluster's: set RAY_ADDRESS, or unset it"
        )
    if config.trainer.device != "cpu" and not on_cluster:
        present = gpus.usable_gpus()
        nodes, each = rollout_devices(config)
        if wanted + nodes * each > present:
            beside = f" and {nodes} x {each} for the rollout (actor_rollout_ref.rollout.n_gpus_per_node)"
            raise UserError(
                f"N_GPUS_PER_NODE={wanted}{beside if nodes else ''}, but this machine has {present} GPUs: lower it, or "
                "set RAY_ADDRESS to train on a cluster"
            )
    return wanted * config.trainer.nnodes


def _check_model(model_path: str, lengths: dict[str, int], tensor_parallel: int = 1) -> None:
    """The model is whole, holds no code, has the weights of its architecture, room for these lengths together and heads
    that divide over the GPUs of a replica; one that is still to be downloaded is not looked into."""
    if hub.is_folder(model_path):
        check_hugging_face(Path(model_path))
    if folder := hub.local_folder(model_path):
        check_architecture(folder, f"MODEL_PATH={model_path}")
    settings = model_settings(model_path)
    check_heads(settings.get("num_attention_heads", 0), tensor_parallel, model_path)
    limit = settings.get("max_position_embeddings")
    if limit and sum(lengths.values()) > limit:
        asked_for = " + ".join(f"{name}={value}" for name, value in lengths.items())
        raise UserError(f"{asked_for}: more tokens than the {limit} positions of {model_path}; lower them")


def check_tables(config: DictConfig, validate: Callable[[str], TableReport]) -> list[str]:
    warnings: list[str] = []
    rows = 0
    for path in listed(config.data.train_files):
        report = validate(path)
        rows += report.rows
        warnings += report.warnings
    taken, size = config.data.get("train_max_samples", -1), config.data.train_batch_size
    if 0 < taken < min(rows, size):
        raise UserError(f"data.train_max_samples={taken}: fewer rows than TRAIN_BATCH_SIZE={size}: raise it")
    if rows < size:
        raise UserError(f"TRAIN_FILE has {rows} rows, fewer than TRAIN_BATCH_SIZE={size}: lower the batch size")
    for path in listed(config.data.val_files):
        warnings += validate(path).warnings
        if "candidates" in config.convrec:  # not of judges
            files = [path, *listed(config.data.train_files)]
            warnings += candidates.check(config.convrec.candidates, files)
    return warnings


def require_files(config: DictConfig) -> None:
    """Raise UserError with all files that are missing, not the first alone."""
    maker = "data judge-sample" if config.run.recipe.startswith("judge") else "data sample"
    catalog = OmegaConf.select(config, "convrec.catalog_file")
    named = {"TRAIN_FILE": config.data.train_files, "VAL_FILE": config.data.val_files, "CATALOG_FILE": catalog}
    missing = [(name, path) for name, files in named.items() for path in listed(files) if not Path(path).is_file()]
    if missing:
        each = "; ".join(f"{name}={path}: no such file" for name, path in missing)
        raise UserError(f"{each}; name one, or make sample data: convrec {maker}")
