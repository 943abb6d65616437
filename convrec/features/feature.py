"""Features: optional parts of training, each in its own folder.

The paper's setting has none. A feature is a subclass of `Feature` in `convrec/features/NAME/feature.py` and a line in
convrec.features.registry. It can take part in four places:

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
    """A feature of a run. Hooks do nothing unless a subclass overrides them.

    Args:
        run: a run with the feature, which hooks read as `self.run`; its settings are `self.settings`, too.

    Attributes:
        fields: response fields of TransferQueue that the credit hooks read in `RankBatch.optional_BT`.
        has_variable_batch: whether the number of rows varies between batches; each batch is then one update.
        answers_each_row: whether equal validation prompts must be answered separately.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    has_variable_batch: ClassVar[bool] = False
    answers_each_row: ClassVar[bool] = False

    def __init__(self, run: Run[RankGRPOConfig]) -> None:
        self.run = run
        self.settings = run.settings

    @classmethod
    def is_on(cls, settings: RankGRPOConfig) -> bool:
        """Return whether a run with these settings has the feature. Every subclass implements it."""
        raise NotImplementedError

    def check(self, catalog: Catalog) -> list[str]:
        """Check the run's settings and data before anything starts.

        Returns:
            Warnings.

        Raises:
            UserError: the run cannot train with the feature.
        """
        return []

    def start_rollout(self, worker: RolloutContext) -> RolloutFeature:
        """Return the part that runs in a rollout worker."""
        return RolloutFeature()

    def prepare(self, batch: RankBatch) -> None:
        """Change the groups or the logged infos before anything is computed.

        Args:
            batch: the step's rows; the hook may assign `groups`, `is_list_B` and `logged_infos`.
        """

    # The next three hooks run only with Rank-GRPO: GRPO and GSPO use verl's advantages. A feature that needs the hooks
    # refuses these algorithms in its check.

    def adjust_ranks(self, batch: RankBatch, credit: Credit) -> None:
        """Change the advantages of ranks, which come from `batch.returns_BK`.

        Args:
            batch: the step's rows.
            credit: the hook may assign `advantages_BK` and add metrics. The units and advantages of tokens are computed
                later.
        """

    def adjust_tokens(self, batch: RankBatch, credit: Credit) -> None:
        """Change the units, advantages and loss mask of tokens.

        Args:
            batch: the step's rows.
            credit: the hook may assign `units_BT`, `advantages_BT` and `loss_mask_BT`, and add metrics.
        """

    def log_credit(self, batch: RankBatch, credit: Credit) -> None:
        """Add metrics about the finished credit.

        Args:
            batch: the step's rows.
            credit: the hook adds to its `metrics`.
        """

    def finish_metrics(self, metrics: dict[str, Any]) -> None:
        """Change the metrics of a step after its update.

        Args:
            metrics: all metrics of the step, changed in place.
        """


class RolloutFeature:
    """The part of a feature in a rollout worker. Hooks do nothing unless a subclass overrides them.

    Attributes:
        needs_groups: whether our sampler must sample all responses to a prompt together, instead of verl's agent loops.
        waits_for_prompt: whether `after_scoring` needs all responses to a prompt, even if verl's agent loops sample.
    """

    needs_groups: ClassVar[bool] = False
    waits_for_prompt: ClassVar[bool] = False

    def sampling_params(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return extra sampling parameters of vLLM for a response to this sample.

        No two features may set the same parameter; `extra_args` are merged.

        Args:
            sample: the columns of the prompt's row.
        """
        return {}

    async def sample(self, prompts: Sequence[Prompt], sample: Sampler) -> list[SampledResponse]:
        """Return the responses to these prompts, calling `sample` one or more times.

        Args:
            prompts: prompts that wait for their responses.
            sample: samples `n` responses to each of the prompts that it gets.
        """
        return await sample(prompts)

    async def after_scoring(self, responses: Sequence[SampledResponse], score: Scorer, is_training: bool) -> None:
        """Change scored responses before they go to TransferQueue.

        Validation whose answers go straight to the driver (`ConvRecAgentLoopWorker.validate`) does not call this.

        Args:
            responses: all responses to one or more prompts.
            score: scores the responses passed to it again.
            is_training: whether a step will train on them.
        """

    def response_fields(self, response: SampledResponse) -> dict[str, Any]:
        """Return extra fields of a response for TransferQueue, name -> value."""
        return {}


@dataclass
class RolloutContext:
    """The state of a rollout worker that its features may use.

    Attributes:
        tokenizer: the policy's tokenizer.
        features: the parts started before this one, by the class of their feature.
    """

    tokenizer: Any
    features: dict[type[Feature], RolloutFeature]
