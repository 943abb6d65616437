"""What a recipe checks before anything expensive starts. Each failure names the variable, file or row and the fix."""

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
    """Raise UserError for settings or data that cannot train; return warnings for what can but looks wrong."""
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
            f"{catalog_file}: no years, which convrec.matching={settings.matching} (PRESET=reference sets it to "
            "reference) needs: use convrec.matching=fuzzy"
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
    """A warning where a usual list of the catalog is longer than a response. A model that is still to be downloaded is
    not looked into."""
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
    usual = round(num_items * sum(tokens) / len(tokens))
    if usual <= max_tokens:
        return []
    longest = sum(sorted(tokens)[-num_items:])
    return [
        f"MAX_RESPONSE_LENGTH={max_tokens}: a list of {num_items} items takes {usual} tokens in the mean, so that most "
        f"are broken off; {longest} hold every list of {settings.catalog_file}"
    ]


def _check_rank_reward(settings: RankGRPOConfig) -> None:
    """The rank reward has its parameters; one of the user's own is imported and tried out."""
    if user_rewards.is_user_reward(settings.reward):
        user_rewards.check(settings.reward, settings.num_items)
        return
    for name, kind in RANK_REWARDS[settings.reward].parameters.items():
        value = getattr(settings, name)
        if not kinds.fits(kind, value):
            raise UserError(
                f"REWARD={settings.reward} needs convrec.{name}, {kinds.wanted(kind)}, not {kinds.shown(value)}"
            )


def _check_rollout_correction(run: Run[RankGRPOConfig]) -> None:
    """verl's corrections that Rank-GRPO's loss applies are weights by token, rank or sequence, and its bypass mode."""
    key = "algorithm.rollout_correction"
    correction = run.rollout_correction
    if not run.is_rank_level:
        if correction.weights == "rank":
            raise UserError(f"{key}.rollout_is=rank: GRPO and GSPO have no ranks; take token or sequence")
        return
    if correction.rejection is not None:
        raise UserError(
            f"{key}.rollout_rs={correction.rejection}: it takes tokens out of verl's response mask, which the loss of "
            "Rank-GRPO does not read, so that they would train all the same: use null, or rollout_is"
        )
    if correction.weights not in (None, "token", "rank", "sequence"):
        raise UserError(f"{key}.rollout_is={correction.weights}: expected token, rank, sequence or null")
    if correction.bypass and correction.weights is not None:
        raise UserError(
            f"{key}: bypass_mode compares the policy with the rollout itself, so that "
            f"rollout_is={correction.weights} would weight by nothing: use one of the two"
        )
    if correction.bypass and correction.loss_type != "ppo_clip":
        raise UserError(f"{key}.loss_type={correction.loss_type}: Rank-GRPO has a loss of its own; leave it ppo_clip")


def _check_dynamic_sampling(run: Run[RankGRPOConfig]) -> None:
    """verl draws another prompt where all rollouts have one number, which must say whether any rank has signal.

    DCG@N does: of all lists of 20 with at most five hits, 21,700, only three pairs share it in float32.
    """
    key = "algorithm.filter_groups"
    metric = run.group_filter
    if metric is None or not run.is_rank_level:
        return
    if metric not in ("reward", "score", "dcg"):  # one number by three names
        raise UserError(
            f"{key}.metric={metric}: rollouts can differ in their ranks where they are equal in it, and would "
            "be thrown away: use reward, which is DCG@N"
        )
    if run.settings.rewards is not None or user_rewards.is_user_reward(run.settings.reward):
        raise UserError(
            f"{key}: verl compares DCG@N, which says nothing about REWARDS or a reward of your own, so that prompts "
            f"with signal would be thrown away: leave {key}.enable=false"
        )


def _check_text_only(settings: RankGRPOConfig) -> None:
    """A model with images is read through a processor, which knows neither the catalog's trie nor a turn's question."""
    path = settings.model
    folder = hub.local_folder(path)
    if folder is None or "vision_config" not in model_settings(str(folder)):
        return
    for setting, is_on in (("CONSTRAINED=1", settings.constrained), ("ASK", settings.ask)):
        if is_on:
            raise UserError(f"{setting}: MODEL_PATH={path} reads images (vision_config); take a model of text alone")


def check_rl(run: Run[RLConfig]) -> None:
    """Raise UserError for settings, of lists or of judges, that cannot train."""
    settings = run.settings
    _check_reward_function(run.reward_module, run.reward_function)
    _check_verls_models(run)
    sampling = run.sampling
    if sampling.temperature != 1.0 or sampling.top_p != 1.0 or sampling.top_k not in (-1, 0):
        raise UserError(
            f"actor_rollout_ref.rollout: temperature={sampling.temperature}, top_p={sampling.top_p}, "
            f"top_k={sampling.top_k} sample from another distribution than the policy, which biases the importance "
            "ratio: use temperature=1 top_p=1 top_k=-1"
        )
    if settings.num_generations < 2:
        raise UserError(
            f"ROLLOUT_N={settings.num_generations}: advantages compare the rollouts of a prompt, so at least 2 are "
            "needed"
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
            "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl (+scale=separate_async): weights go through "
            "cupy, which is not installed here: pip install cupy-cuda13x==14.0.1, or all of `convrec[gpu]`"
        )


def _check_fused_kernels(run: Run[RLConfig]) -> None:
    instead = "add actor_rollout_ref.model.use_fused_kernels=false"
    check_logits(run.model_section, "fused log-probs", instead)
    if run.sequence_parallel_size > 1:
        raise UserError(
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={run.sequence_parallel_size} cuts responses, "
            f"which fused log-probs read whole: {instead}"
        )


def _check_verls_models(run: Run[RLConfig]) -> None:
    """The training loop has neither a critic nor a reward model that waits for the rollout's devices."""
    if run.trains_critic:
        raise UserError(
            "critic.enable=true (or algorithm.adv_estimator=gae): rollouts of a prompt are compared with each other "
            "here, and no critic is trained: leave both as they are"
        )
    if run.has_colocated_reward_model:
        raise UserError(
            "reward.reward_model.enable=true: a reward model on the rollout's own devices scores too late for lists; "
            "add reward.reward_model.enable_resource_pool=true, or give reward.custom_reward_function"
        )


def _check_reward_function(path: str, name: str) -> None:
    """verl's workers will find it, as `pkg://module` or a file, and it is a function."""
    key = "reward.custom_reward_function"
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


def check_sft(run: Run[SFTConfig]) -> list[str]:
    """As `check_rank_grpo`, for SFT."""
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
            f"VAL_FILE has {rows} rows, fewer than the {run.num_devices} devices (N_GPUS_PER_NODE x N_NODES) that "
            "share them: add rows, or use fewer devices"
        )
    are_lists = not all(map(is_demonstration_table, listed(settings.train_file)))  # else verdicts of a judge
    warnings += pretrained.prepare(run, lists=are_lists)
    precision.set_precision(run)
    return [*warnings, *memory.fit_micro_batch(run)]


def _check_devices(run: Run[TrainingConfig]) -> None:
    """Check that this machine has what the run asks of it; a cluster's nodes are asked once Ray is there."""
    if os.environ.get("RAY_ADDRESS"):
        return
    if not run.uses_gpu and not run.is_sft:
        gpus.check_vllm_runs_on_cpu()
    if run.settings.num_nodes > 1:
        raise UserError(
            f"N_NODES={run.settings.num_nodes}: more than this node are a Ray cluster's: set RAY_ADDRESS, or unset it"
        )
    if not run.uses_gpu:
        return
    present = gpus.usable_gpus()
    nodes, each = run.rollout_devices
    if run.gpus_per_node + nodes * each > present:
        beside = f" and {nodes} x {each} for the rollout (actor_rollout_ref.rollout.n_gpus_per_node)" if nodes else ""
        raise UserError(
            f"N_GPUS_PER_NODE={run.gpus_per_node}{beside}, but this machine has {present} GPUs: lower it, or set "
            "RAY_ADDRESS to train on a cluster"
        )


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


def check_tables(run: Run[TrainingConfig], validate: Callable[[str], TableReport]) -> list[str]:
    """Raise UserError for rows that cannot train, and for fewer than a batch; return warnings."""
    warnings: list[str] = []
    rows = 0
    for path in listed(run.settings.train_file):
        report = validate(path)
        rows += report.rows
        warnings += report.warnings
    size = run.train_batch_size
    if 0 < run.max_training_rows < min(rows, size):
        raise UserError(
            f"data.train_max_samples={run.max_training_rows}: fewer rows than TRAIN_BATCH_SIZE={size}: raise it"
        )
    if rows < size:
        raise UserError(f"TRAIN_FILE has {rows} rows, fewer than TRAIN_BATCH_SIZE={size}: lower the batch size")
    for path in listed(run.settings.val_file):
        warnings += validate(path).warnings
    return warnings


def _check_candidates(settings: RankGRPOConfig | SFTConfig) -> list[str]:
    """Warnings where the prompts of the tables name other numbers of candidates than the run says."""
    warnings: list[str] = []
    for path in listed(settings.val_file):
        warnings += candidates.check(settings.candidates, [path, *listed(settings.train_file)])
    return warnings


def require_files(settings: TrainingConfig) -> None:
    """Raise UserError with all files that are missing, not the first alone."""
    maker = "data judge-sample" if isinstance(settings, JudgeConfig) else "data sample"
    named = {"TRAIN_FILE": settings.train_file, "VAL_FILE": settings.val_file}
    if isinstance(settings, RankGRPOConfig):
        named["CATALOG_FILE"] = settings.catalog_file
    missing = [(name, path) for name, files in named.items() for path in listed(files) if not Path(path).is_file()]
    if missing:
        each = "; ".join(f"{name}={path}: no such file" for name, path in missing)
        raise UserError(f"{each}; name one, or make sample data: convrec {maker}")
