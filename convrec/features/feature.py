"""What a feature is: a part of training that a run may turn on, in a folder of its own.

The paper's setting has none. A feature is a subclass of `Feature` in `convrec/features/NAME/feature.py` and a line in
convrec.features.registry. It may take part in four places:

    before a run         check                              in the command, before anything expensive
    in a rollout worker  start_rollout -> RolloutFeature    where responses are sampled and scored
    in the driver        prepare ... log_credit             between rollouts and update (convrec.rank_grpo.credit)
    after the update     finish_metrics
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from convrec.features.responses import Prompt, SampledResponse
from convrec.rank_grpo.credit import Credit, RankBatch
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run
from convrec.titles.catalog import Catalog

Sampler = Callable[[Sequence[Prompt]], Awaitable[list[SampledResponse]]]
Scorer = Callable[[Sequence[SampledResponse]], Awaitable[None]]


class Feature:
    """A feature of a run. Every hook does nothing unless a subclass says otherwise.

    Attributes:
        fields: response fields of TransferQueue that the credit hooks read in `RankBatch.optional_BT`.
        has_variable_batch: whether a batch has an unknown number of rows and is one update.
        answers_each_row: whether equal validation prompts have answers of their own.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    has_variable_batch: ClassVar[bool] = False
    answers_each_row: ClassVar[bool] = False

    def __init__(self, run: Run[RankGRPOConfig]) -> None:
        self.run = run
        self.settings = run.settings

    @classmethod
    def is_on(cls, settings: RankGRPOConfig) -> bool:
        """Whether a run with these settings has the feature. Every subclass says so."""
        raise NotImplementedError

    def check(self, catalog: Catalog) -> list[str]:
        """Raise UserError for what cannot train with the feature; return warnings."""
        return []

    def start_rollout(self, worker: RolloutContext) -> RolloutFeature:
        """Return the part that runs in a rollout worker."""
        return RolloutFeature()

    def prepare(self, batch: RankBatch) -> None:
        """Change the groups, or what is logged, before anything is computed."""

    # The next three run for Rank-GRPO alone: GRPO and GSPO have verl's advantages. A feature that is nothing without
    # them refuses these algorithms in its check.

    def adjust_ranks(self, batch: RankBatch, credit: Credit) -> None:
        """Change the advantages of ranks. The returns they come from are `batch.returns_BK`."""

    def adjust_tokens(self, batch: RankBatch, credit: Credit) -> None:
        """Change the units, advantages and loss mask of tokens."""

    def log_credit(self, batch: RankBatch, credit: Credit) -> None:
        """Add metrics about the finished credit."""

    def finish_metrics(self, metrics: dict[str, Any]) -> None:
        """Change what the step logs, after its update."""


class RolloutFeature:
    """The part of a feature in a rollout worker. Every hook does nothing unless a subclass says otherwise.

    Attributes:
        needs_groups: whether responses must be sampled by our own sampler, not one by one by verl's agent loops.
        waits_for_prompt: whether `after_scoring` needs all responses to a prompt, also where verl's agent loops sample.
    """

    needs_groups: ClassVar[bool] = False
    waits_for_prompt: ClassVar[bool] = False

    def sampling_params(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return further sampling parameters of vLLM for a response to this sample.

        No two features may set the same one; `extra_args` are merged.
        """
        return {}

    async def sample(self, prompts: Sequence[Prompt], sample: Sampler) -> list[SampledResponse]:
        """Return the responses to these prompts, by calling `sample` once or several times."""
        return await sample(prompts)

    async def after_scoring(self, responses: Sequence[SampledResponse], score: Scorer, is_training: bool) -> None:
        """Change scored responses before they go to TransferQueue.

        A validation whose answers go straight to the driver (`ConvRecAgentLoopWorker.validate`) does not call this.

        Args:
            responses: all of some prompts.
            score: scores the responses that it is given again.
            is_training: whether a step will train on them.
        """

    def response_fields(self, response: SampledResponse) -> dict[str, Any]:
        """Return further fields of a response for TransferQueue."""
        return {}


@dataclass
class RolloutContext:
    """What a rollout worker has for its features.

    Attributes:
        tokenizer: of the policy.
        features: parts that were started before this one, by class of their feature.
    """

    tokenizer: Any
    features: dict[type[Feature], RolloutFeature]
