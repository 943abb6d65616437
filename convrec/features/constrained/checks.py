"""What training under the constraint of a catalog needs, checked and made before Ray starts."""

from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
from omegaconf import OmegaConf, open_dict

from convrec.base.errors import UserError
from convrec.checkpoints.logits import check_logits
from convrec.data.tokenizer import load_tokenizer
from convrec.features.asking.turns import question_text
from convrec.features.constrained.catalog_trie import (
    CatalogTrie,
    catalog_trie,
    check_length,
    excluded_items,
    items_left,
    left_out_warnings,
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
    """Raise UserError for what cannot be trained under the constraint; return warnings. Writes nothing."""
    _check_settings(run)
    matcher = make_matcher(catalog, run.settings)
    trie, _ = _make_trie(run, matcher, keep=False)
    _check_room(run.settings, matcher, trie)
    return left_out_warnings(trie, catalog, run.settings.catalog_file)


def use_trie(run: Run[RankGRPOConfig]) -> None:
    """Keep the catalog's trie beside it, or in the run folder, and have the rollout use it."""
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
        questions=[question_text(attribute) for attribute in settings.ask or ()],
    )


def _check_settings(run: Run[RankGRPOConfig]) -> None:
    """Refuse what would train on another distribution than the one that samples, or on diluted ratios."""
    if not run.is_rank_level:
        raise UserError(
            f"{ON}: GRPO and GSPO take ratios and means over all tokens, most of which are forced: take "
            "ALGORITHM=rank_grpo"
        )
    preset = run.settings.preset
    if preset != "paper":
        raise UserError(
            f"{ON}: PRESET={preset} shapes lists of wrong length and cuts ranks as the public code does, which "
            "constrained lists have no use for: take PRESET=paper"
        )
    if run.trainer_mode != NAME:
        raise UserError(
            f"{ON}: trainer.v1.trainer_mode={run.trainer_mode} goes on with responses that were broken "
            "off, as parts of their prompts, where a list under the constraint would begin anew: take "
            f"{NAME}"
        )
    if run.actor_strategy not in ("fsdp", "fsdp2"):
        raise UserError(
            f"{ON}: actor_rollout_ref.actor.strategy={run.actor_strategy}: the log-probs of allowed tokens need whole "
            "hidden states and the whole head in each process (no tensor parallel actor): take fsdp2"
        )
    for key in run.sequence_parallel_keys:
        raise UserError(f"{ON}: {key}: it cuts responses over processes, which need whole ones: take 1")
    if run.rollout_engine != "vllm":
        raise UserError(
            f"{ON}: actor_rollout_ref.rollout.name={run.rollout_engine}: lists are held to the catalog by vLLM"
        )
    if not run.samples_single_turns or run.is_fully_deterministic:
        raise UserError(
            f"{ON}: actor_rollout_ref.rollout: lists are sampled by single_turn_agent without full_determinism "
            "(convrec.deterministic=true gives every rollout a seed)"
        )
    if not run.keeps_processed_log_probs:
        raise UserError(
            f"{ON}: actor_rollout_ref.rollout: take calculate_log_probs=true and logprobs_mode=processed_logprobs, the "
            "log-probs of the constrained policy"
        )
    check_logits(run.model_section, ON, "take another model, or other target_modules")


def _check_room(settings: RankGRPOConfig, matcher: Matcher, trie: CatalogTrie) -> None:
    """Every conversation leaves enough items, and the longest list fits."""
    num_items = settings.num_items
    check_length(
        trie,
        matcher.catalog,
        settings.catalog_file,
        num_items,
        settings.max_response_length,
        f"{ON}: MAX_RESPONSE_LENGTH=",
    )
    items_of_title = cache(lambda title: len(excluded_items(matcher, [title])))
    for file in (*listed(settings.train_file), *listed(settings.val_file)):
        for row in pq.read_table(file, columns=["sample_id", "seen_titles"]).to_pylist():
            seen = row["seen_titles"] or ()
            if trie.num_items - sum(map(items_of_title, seen)) >= num_items:
                continue  # nearly always, and known without a set
            left = items_left(trie, excluded_items(matcher, seen))
            if left < num_items:
                raise UserError(
                    f"{file}, {row['sample_id']}: {left} of the catalog's {trie.num_items} items are not seen in that "
                    f"conversation, and a list has {num_items}: leave the row out, or lower NUM_ITEMS"
                )
