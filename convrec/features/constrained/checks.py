"""What training under the constraint of a catalog needs, checked and made before Ray starts."""

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf, open_dict

from convrec.checkpoints.logits import check_logits
from convrec.data.tokenizer import load_tokenizer
from convrec.errors import UserError
from convrec.features.asking.turns import question_text
from convrec.features.constrained.catalog_trie import (
    CatalogTrie,
    catalog_trie,
    check_length,
    excluded_items,
    items_left,
    left_out_warnings,
)
from convrec.lists.catalog import Catalog, load_catalog
from convrec.lists.matching import Matcher, make_matcher
from convrec.lists.settings import ListSettings
from convrec.rank_grpo import NAME
from convrec.runs.folder import listed

ON = "CONSTRAINED=1 (convrec.constrained)"


def check(config: DictConfig, catalog: Catalog) -> list[str]:
    """Raise UserError for what cannot be trained under the constraint; return warnings. Writes nothing."""
    _check_settings(config)
    matcher = make_matcher(catalog, ListSettings.of(config.convrec))
    trie, _ = _make_trie(config, matcher, keep=False)
    _check_room(config, matcher, trie)
    return left_out_warnings(trie, catalog, config.convrec.catalog_file)


def use_trie(config: DictConfig) -> None:
    """Keep the catalog's trie beside it, or in the run folder, and have the rollout use it."""
    from convrec.features.constrained.vllm_lists import PROCESSOR, TRIE  # imports torch

    matcher = make_matcher(load_catalog(config.convrec.catalog_file), ListSettings.of(config.convrec))
    _, file = _make_trie(config, matcher, keep=True)
    given: dict[str, Any] = {"logits_processors": [PROCESSOR], "additional_config": {TRIE: str(file)}}
    with open_dict(config):
        OmegaConf.update(config, "actor_rollout_ref.rollout.engine_kwargs.vllm", given, force_add=True)


def _make_trie(config: DictConfig, matcher: Matcher, keep: bool) -> tuple[CatalogTrie, Path]:
    model = config.actor_rollout_ref.model
    tokenizer, _ = load_tokenizer(model.path, f"{ON}: ", tokenizer_path=model.get("tokenizer_path"))
    folder = Path(config.trainer.default_local_dir)
    return catalog_trie(
        *(Path(config.convrec.catalog_file), matcher, tokenizer, config.convrec.delimiter, folder),
        keep=keep,
        questions=[question_text(attribute) for attribute in config.convrec.get("ask") or ()],
    )


def _check_settings(config: DictConfig) -> None:
    """What would train on another distribution than the one that samples, or on diluted ratios, is refused."""
    ours, actor, rollout = config.convrec, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model = config.actor_rollout_ref.model
    if config.algorithm.adv_estimator != NAME:
        raise UserError(
            f"{ON}: GRPO and GSPO take ratios and means over all tokens, most of which are forced: take "
            "ALGORITHM=rank_grpo"
        )
    if ours.preset != "paper":
        raise UserError(
            f"{ON}: PRESET={ours.preset} shapes lists of wrong length and cuts ranks as the public code does, which "
            "constrained lists have no use for: take PRESET=paper"
        )
    if config.trainer.v1.trainer_mode != NAME:
        raise UserError(
            f"{ON}: trainer.v1.trainer_mode={config.trainer.v1.trainer_mode} goes on with responses that were broken "
            "off, as parts of their prompts, where a list under the constraint would begin anew: take "
            f"{NAME}"
        )
    if actor.strategy not in ("fsdp", "fsdp2"):
        raise UserError(
            f"{ON}: actor_rollout_ref.actor.strategy={actor.strategy}: the log-probs of allowed tokens need whole "
            "hidden states and the whole head in each process (no tensor parallel actor): take fsdp2"
        )
    for part in ("actor", "actor.fsdp_config", "ref", "ref.fsdp_config"):
        key = f"actor_rollout_ref.{part}.ulysses_sequence_parallel_size"
        if (OmegaConf.select(config, key) or 1) > 1:
            raise UserError(f"{ON}: {key}: it cuts responses over processes, which need whole ones: take 1")
    if rollout.name != "vllm":
        raise UserError(f"{ON}: actor_rollout_ref.rollout.name={rollout.name}: lists are held to the catalog by vLLM")
    if rollout.agent.default_agent_loop != "single_turn_agent" or rollout.full_determinism:
        raise UserError(
            f"{ON}: actor_rollout_ref.rollout: lists are sampled by single_turn_agent without full_determinism "
            "(convrec.deterministic=true gives every rollout a seed)"
        )
    if not rollout.calculate_log_probs or rollout.logprobs_mode != "processed_logprobs":
        raise UserError(
            f"{ON}: actor_rollout_ref.rollout: take calculate_log_probs=true and logprobs_mode=processed_logprobs, the "
            "log-probs of the constrained policy"
        )
    check_logits(model, ON, "take another model, or other target_modules")


def _check_room(config: DictConfig, matcher: Matcher, trie: CatalogTrie) -> None:
    """Every conversation leaves enough items, and the longest list fits."""
    num_items = config.convrec.num_items
    catalog_file, max_tokens = config.convrec.catalog_file, config.data.max_response_length
    check_length(trie, matcher.catalog, catalog_file, num_items, max_tokens, f"{ON}: MAX_RESPONSE_LENGTH=")
    items_of_title = cache(lambda title: len(excluded_items(matcher, [title])))
    for file in (*listed(config.data.train_files), *listed(config.data.val_files)):
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
