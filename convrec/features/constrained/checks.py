"""Checks before a run with constrained lists, and the trie that it needs, made before Ray starts."""

from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
from omegaconf import OmegaConf, open_dict

from convrec.base.errors import UserError
from convrec.checkpoints.logits import check_logits
from convrec.data.tokenizer import load_tokenizer
from convrec.features.asking.turns import format_question
from convrec.features.constrained.catalog_trie import (
    CatalogTrie,
    catalog_trie,
    check_length,
    count_items_left,
    describe_left_out_rows,
    find_excluded_items,
)
from convrec.lists.settings import make_matcher
from convrec.rank_grpo import NAME
from convrec.runs.folder import listed
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.matching import Matcher

ON = "CONSTRAINED=1 (convrec.constrained)"


def check(run: Run[RankGRPOConfig], catalog: Catalog) -> list[str]:
    """Check that a run can train with constrained lists; writes nothing.

    Returns:
        Warnings.

    Raises:
        UserError: another setting, the tokenizer, the catalog or a conversation rules it out.
    """
    _check_settings(run)
    matcher = make_matcher(catalog, run.settings)
    trie, _ = _make_trie(run, matcher, keep=False)
    _check_room(run.settings, matcher, trie)
    return describe_left_out_rows(trie, catalog, run.settings.catalog_file)


def use_trie(run: Run[RankGRPOConfig]) -> None:
    """Cache the catalog's trie next to the catalog, or in the run folder, and make the rollout use it.

    Args:
        run: a run with constrained lists; its verl config gets the processor and the trie's file.

    Raises:
        UserError: see `build_catalog_trie`.
    """
    from convrec.features.constrained.vllm_lists import PROCESSOR, TRIE  # imports torch

    matcher = make_matcher(load_catalog(run.settings.catalog_file), run.settings)
    _, file = _make_trie(run, matcher, keep=True)
    engine_settings = {"logits_processors": [PROCESSOR], "additional_config": {TRIE: str(file)}}
    with open_dict(run.verl_config) as config:
        OmegaConf.update(config, "actor_rollout_ref.rollout.engine_kwargs.vllm", engine_settings, force_add=True)


def _make_trie(run: Run[RankGRPOConfig], matcher: Matcher, keep: bool) -> tuple[CatalogTrie, Path]:
    settings = run.settings
    tokenizer, _ = load_tokenizer(run.model_section.path, f"{ON}: ", tokenizer_path=run.tokenizer_path)
    return catalog_trie(
        Path(settings.catalog_file),
        matcher,
        tokenizer,
        settings.delimiter,
        run.folder,
        keep=keep,
        questions=[format_question(attribute) for attribute in settings.ask or ()],
    )


def _check_settings(run: Run[RankGRPOConfig]) -> None:
    """Refuse settings that would train on a distribution other than the sampled one, or on diluted ratios."""
    if not run.is_rank_level:
        raise UserError(
            "constraint.algorithm",
            f"{ON}: GRPO and GSPO take ratios and means over all tokens, most of which are forced. Set "
            "ALGORITHM=rank_grpo.",
        )
    preset = run.settings.preset
    if preset != "paper":
        raise UserError(
            "constraint.preset",
            f"{ON}: PRESET={preset} penalises list length and truncates ranks as the public code does, which makes no "
            "sense for constrained lists. Set PRESET=paper.",
        )
    if run.trainer_mode != NAME:
        raise UserError(
            "constraint.trainer-mode",
            f"{ON}: trainer.v1.trainer_mode={run.trainer_mode} continues interrupted responses as parts of their "
            f"prompts, where a constrained list would start over. Set it to {NAME}.",
        )
    if run.actor_strategy not in ("fsdp", "fsdp2"):
        raise UserError(
            "constraint.actor-strategy",
            f"{ON}: actor_rollout_ref.actor.strategy={run.actor_strategy}: the log-probs of allowed tokens need whole "
            "hidden states and the whole head in each process (no tensor parallelism). Set it to fsdp2.",
        )
    for key in run.sequence_parallel_keys:
        raise UserError(
            "constraint.sequence-parallel",
            f"{ON}: {key}: sequence parallelism splits responses between processes, but each process needs whole "
            "responses. Set it to 1.",
        )
    if run.rollout_engine != "vllm":
        raise UserError(
            "constraint.rollout-engine",
            f"{ON}: actor_rollout_ref.rollout.name={run.rollout_engine}: only vLLM can constrain lists. Set it to "
            "vllm.",
        )
    if not run.samples_single_turns or run.is_fully_deterministic:
        raise UserError(
            "constraint.sampler",
            f"{ON}: actor_rollout_ref.rollout: constrained lists need single_turn_agent, without full_determinism "
            "(convrec.deterministic=true gives each rollout a seed).",
        )
    if not run.keeps_processed_log_probs:
        raise UserError(
            "constraint.log-probs",
            f"{ON}: actor_rollout_ref.rollout: set calculate_log_probs=true and logprobs_mode=processed_logprobs, to "
            "get the log-probs of the constrained policy.",
        )
    check_logits(run.model_section, ON, "use another model, or other target_modules")


def _check_room(settings: RankGRPOConfig, matcher: Matcher, trie: CatalogTrie) -> None:
    """Check that the longest list fits, and that each conversation leaves enough items."""
    num_items = settings.num_items
    check_length(
        trie,
        matcher.catalog,
        settings.catalog_file,
        num_items,
        settings.max_response_length,
        f"{ON}: MAX_RESPONSE_LENGTH=",
    )
    items_of_title = cache(lambda title: len(find_excluded_items(matcher, [title])))
    for file in (*listed(settings.train_file), *listed(settings.val_file)):
        for row in pq.read_table(file, columns=["sample_id", "seen_titles"]).to_pylist():
            seen = row["seen_titles"] or ()
            if trie.num_items - sum(map(items_of_title, seen)) >= num_items:
                continue  # nearly always, and cheaper than building a set
            left = count_items_left(trie, find_excluded_items(matcher, seen))
            if left < num_items:
                raise UserError(
                    "constraint.too-few-items",
                    f"{file}, {row['sample_id']}: NUM_ITEMS={num_items}, but the conversation leaves only {left} of "
                    f"the catalog's {trie.num_items} items unseen. Remove the row, or lower NUM_ITEMS.",
                )
