"""The loss in verl's FSDP engine, from the trainer's advantages to the logged metrics."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from convrec.features.responses import TURN
from convrec.features.rewards.parts import combined
from convrec.rank_grpo.credit import NOT_REPORTED
from convrec.training.loss import rank_grpo_loss
from convrec.training.rank_method import RankMethod
from tests.convrec.conftest import nested
from tests.convrec.training.conftest import EOS, LINE, rank_method

# two prompts, two responses each: exact, truncated, short, too long
RESPONSES = [[2, LINE, 3, 4, EOS], [2, 3, 4, 5, 6, 7, 8, 9, 2], [5, EOS], [2, LINE, 3, LINE, 4, 4, EOS]]
RETURNS = [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]

Update = Callable[..., tuple[float, dict[str, Any]]]


Computed = Callable[..., tuple[torch.Tensor, dict[str, float]]]


@pytest.fixture
def computed(queue: Callable[..., Any]) -> Computed:
    """The credit of a reward's parts (P, B, K): the advantages of all tokens in a row, and what is logged."""

    def run(
        method: RankMethod, parts: list[Any], uid: list[str], responses: list[list[int]]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        weights = dict(method.settings.rewards or {"alone": 1})
        infos = []
        for of_parts in zip(*parts, strict=True):
            returns = combined(dict(zip(weights, of_parts, strict=True)), weights, 2)
            infos.append({"rank_returns": returns, "part_returns": list(of_parts), "score": 0.0})
        started = queue(
            tags=[{}] * len(uid),
            uid=uid,
            responses=nested(responses),
            response_mask=nested([[1] * len(row) for row in responses]),
            extra_fields=[{"reward_extra_info": info} for info in infos],
        )
        metrics: dict[str, float] = {}
        method.assign_credit(None, started.batch, metrics)
        return started.fields["advantages"].values(), metrics

    return run


@pytest.mark.parametrize("combination", ["sum", "normalised"])
def test_one_part_with_weight_one_trains_like_the_reward_alone(computed: Computed, combination: str) -> None:
    uid = ["a", "a", "b", "b"]
    plain, metrics = computed(rank_method(), [RETURNS], uid, RESPONSES)
    assert not any("part" in name for name in metrics)
    method = rank_method(rewards={"relevance": 1}, reward_combination=combination)
    same, metrics = computed(method, [RETURNS], uid, RESPONSES)
    assert torch.equal(same, plain)  # to the last digit
    assert metrics["rank_grpo/part/relevance/signal"] == 0.5  # of 2 prompts x 2 ranks: rank 1 of a, rank 2 of b


def slowly(returns: np.ndarray, uid: list[str], by_std: bool) -> np.ndarray:
    """method.md 3, rollout by rollout and rank by rank."""
    advantages = np.zeros_like(returns)
    for i, k in np.ndindex(returns.shape):
        group = [returns[j, k] for j in range(len(uid)) if uid[j] == uid[i]]
        if len(set(group)) > 1:
            advantages[i, k] = (returns[i, k] - np.mean(group)) / (np.std(group, ddof=1) + 1e-4 if by_std else 1)
    return advantages


@pytest.mark.parametrize(("combination", "by_std"), [("sum", True), ("normalised", True), ("sum", False)])
def test_advantages_and_metrics_of_several_parts_against_numpy(
    computed: Computed, combination: str, by_std: bool
) -> None:
    weights = {"relevance": 1.0, "diversity": 0.3, "popularity": -2.0}
    random = np.random.default_rng(0)
    uid = list("abcacbabcdbc")  # of uneven sizes, mixed, one alone
    hits = random.integers(0, 2, (12, 2)).astype(float)
    rare = np.zeros((12, 2))
    rare[3, 1], rare[4, 0] = 0.01, 0.02
    parts = np.stack([hits, random.random((12, 2)), rare])

    algorithm = {"norm_adv_by_std_in_grpo": by_std}
    method = rank_method(rewards=weights, reward_combination=combination, algorithm=algorithm)
    # two tokens of rank 1, two of rank 2: the advantages of both ranks stand twice in each row
    got, metrics = computed(method, parts.tolist(), uid, [[2, LINE, 3, EOS]] * 12)
    alone = np.stack([w * slowly(part, uid, by_std) for w, part in zip(weights.values(), parts, strict=True)])
    total = sum(w * part for w, part in zip(weights.values(), parts, strict=True))
    expected = alone.sum(axis=0) if combination == "normalised" else slowly(total, uid, by_std)
    np.testing.assert_allclose(got.view(12, 4)[:, ::2], expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(got.view(12, 4)[:, ::2], got.view(12, 4)[:, 1::2])
    for name, part, advantages in zip(weights, parts, alone, strict=True):
        varied = [len({part[i, k] for i in range(12) if uid[i] == u}) > 1 for u in "abcd" for k in (0, 1)]
        logged = {key: metrics[f"rank_grpo/part/{name}/{key}"] for key in ("return", "signal", "advantage")}
        wanted = {"return": part.mean(), "signal": np.mean(varied), "advantage": np.abs(advantages).mean()}
        assert logged == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("level", ["token", "rank", "sequence"])
@pytest.mark.parametrize("threshold", [2.0, "0.5_1.5"])
def test_weights_of_the_rollout_correction_against_numpy(
    queue: Callable[..., Any], level: str, threshold: float | str
) -> None:
    """exp of the sum of log pi_old - log pi_rollout over token, unit or response; cut at 2, or 0 outside .5 to 1.5."""
    random = np.random.default_rng(0)
    old, rollout = ([random.normal(-1, 0.4, len(row)).tolist() for row in RESPONSES] for _ in range(2))
    correction = {"rollout_is": level, "rollout_is_threshold": threshold, "rollout_is_batch_normalize": False}
    method = rank_method(algorithm={"rollout_correction": correction})
    started = queue(
        tags=[{}] * 4,
        uid=["a", "a", "b", "b"],
        responses=nested(RESPONSES),
        response_mask=nested([[1] * len(row) for row in RESPONSES]),
        extra_fields=[{"reward_extra_info": {"rank_returns": row, "score": 0.0}} for row in RETURNS],
        old_log_probs=nested(old),
        rollout_log_probs=nested(rollout),
    )
    metrics: dict[str, float] = {}
    method.assign_credit(None, started.batch, metrics)
    assert "rollout_corr/rollout_is_mean" in metrics
    kept = 0
    for row, weights in enumerate(started.fields["rollout_is_weights"].unbind()):
        units = started.fields["policy_units"].unbind()[row].tolist()
        for t, weight in enumerate(weights.tolist()):
            alike = {"token": [t], "rank": [s for s, u in enumerate(units) if u == units[t]]}
            tokens = alike.get(level, range(len(units)))
            if units[t] == 0 and level == "rank":
                continue  # of no unit: it counts nowhere
            ratio = np.exp(sum(old[row][s] - rollout[row][s] for s in tokens))
            expected = min(ratio, 2.0) if threshold == 2.0 else ratio * (0.5 <= ratio <= 1.5)
            assert weight == pytest.approx(expected, rel=1e-5)
            kept += 0 < weight < 1.5
    assert kept  # not all are at a bound


def test_a_share_of_log_probs_changes_only_the_comparison(queue: Callable[..., Any]) -> None:
    """Loss, gradient and metrics of two micro-batches, with log-probs of all lists and of the first of each prompt."""
    from verl.utils.metric import Metric
    from verl.utils.tensordict_utils import get_tensordict

    random = np.random.default_rng(0)
    actor = [[0.0, *random.normal(-1, 0.4, len(row)).tolist(), 0.0] for row in RESPONSES]
    differences = [random.uniform(0, 0.2, len(row)) for row in RESPONSES]
    all_lists = [(np.array(row[1:-1]) - d).tolist() for row, d in zip(actor, differences, strict=True)]
    share = [row if place % 2 == 0 else [NOT_REPORTED] * len(row) for place, row in enumerate(all_lists)]

    def run(rollout: list[list[float]]) -> tuple[float, torch.Tensor, dict[str, float]]:
        method, mask = rank_method(), nested([[1] * len(row) for row in RESPONSES])
        started = queue(
            tags=[{}] * 4,
            uid=["a", "a", "b", "b"],
            prompts=nested([[7, 8]] * 4),
            responses=nested(RESPONSES),
            response_mask=mask,
            loss_mask=mask,
            rollout_log_probs=nested(rollout),
            extra_fields=[{"reward_extra_info": {"rank_returns": row, "score": 0.0}} for row in RETURNS],
        )
        metrics: dict[str, float] = {}
        method.assign_credit(None, started.batch, metrics)
        log_probs = nested(actor).requires_grad_()
        counts = {"batch_num_tokens": sum(map(len, RESPONSES)), "global_batch_size": 4, "dp_size": 1}
        names = ("prompts", "responses", "loss_mask", "advantages", "policy_units", "rollout_log_probs")
        losses, parts = [], dict[str, Metric]()
        for rows in (slice(0, 2), slice(2, 4)):
            fields = {name: nested([row.tolist() for row in started.fields[name].unbind()[rows]]) for name in names}
            of_rows = torch.nested.as_nested_tensor(log_probs.unbind()[rows], layout=torch.jagged)
            data = get_tensordict(fields, counts)
            loss, logged = rank_grpo_loss({"log_probs": of_rows}, data, settings=method.make_loss_settings())
            losses.append(loss)
            for name, metric in logged.items():
                parts.setdefault(name, Metric(metric.aggregation)).append(metric)
        sum(losses).backward()
        metrics |= {f"actor/{name}": metric.aggregate() for name, metric in parts.items()}
        method.finish_metrics(1, metrics)
        return sum(losses).item(), log_probs.grad.values(), metrics

    loss_of_all, gradient_of_all, metrics_of_all = run(all_lists)
    loss, gradient, metrics = run(share)
    assert gradient.any()
    assert loss == loss_of_all
    assert torch.equal(gradient, gradient_of_all)
    for found, compared in ((metrics_of_all, differences), (metrics, differences[::2])):
        assert float(found.pop("actor/rollout_diff_mean")) == pytest.approx(np.concatenate(compared).mean(), rel=1e-5)
        assert float(found.pop("actor/rollout_diff_max")) == pytest.approx(np.concatenate(compared).max(), rel=1e-5)
    assert metrics == metrics_of_all


@pytest.fixture
def update(queue: Callable[..., Any], training_worker: Callable[..., Any]) -> Update:
    """An update of a fresh model: (verl's loss, the fields of the batch)."""
    from verl.utils.tensordict_utils import get, get_tensordict

    def run(
        preset: str, mask_truncated: bool, responses: list[list[int]] = RESPONSES, micro_batch: int = 4
    ) -> tuple[float, dict[str, Any]]:
        method = rank_method(preset, mask_truncated)
        prompts, mask = [[7, 8]] * 4, nested([[1] * len(row) for row in responses])
        extra = [{"reward_extra_info": {"rank_returns": row, "score": sum(row)}} for row in RETURNS]
        started = queue(
            tags=[{}] * 4,
            uid=["a", "a", "b", "b"],
            prompts=nested(prompts),
            responses=nested(responses),
            response_mask=mask,
            loss_mask=mask,
            extra_fields=extra,
        )
        method.assign_credit(None, started.batch, {})

        started.fields["input_ids"] = nested([a + b for a, b in zip(prompts, responses, strict=True)])
        started.fields["position_ids"] = nested([list(range(2 + len(row))) for row in responses])
        names = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask", "advantages")
        data = get_tensordict(
            {name: started.fields[name] for name in (*names, "policy_units")},
            {"global_batch_size": 4, "temperature": 1.0},
        )
        micro_batches = []

        def loss_fn(**arguments: Any) -> Any:
            micro_batches.append(len(arguments["data"]))
            return rank_grpo_loss(**arguments, settings=method.make_loss_settings())

        worker = training_worker(micro_batch=micro_batch)
        worker.set_loss_fn(loss_fn)
        metrics = get(worker.train_batch(data), "metrics")
        assert micro_batches == [micro_batch] * (4 // micro_batch)
        return metrics["loss"], started.fields

    return run


@pytest.mark.parametrize("micro_batch", [4, 2, 1])
def test_reference_token_mean_covers_kept_rows_only(update: Update, micro_batch: int) -> None:
    """As in TRL's GRPO trainer, whose completion_mask is 0 in truncated rows. Strictly on-policy, so w = 1."""
    loss, fields = update("reference", True, micro_batch=micro_batch)
    kept = [0, 2, 3]
    advantages = fields["advantages"].unbind()
    total = sum(float(advantages[row].sum()) for row in kept)
    assert loss == pytest.approx(-total / sum(len(RESPONSES[row]) for row in kept), abs=1e-6)
    assert fields["loss_mask"].unbind()[1].eq(0).all()
    all_rows, _ = update("reference", False, micro_batch=micro_batch)
    assert abs(all_rows - loss) > 0.01


def test_paper_loss_normalises_by_whole_batch_despite_drops(update: Update) -> None:
    loss, fields = update("paper", True)
    means = 0.0
    for advantages, units in zip(fields["advantages"].unbind(), fields["policy_units"].unbind(), strict=True):
        means += sum(float(advantages[units == unit].mean()) for unit in units.unique() if unit)
    assert loss == pytest.approx(-means / (4 * 2), abs=1e-6)  # 1 / (G N) of the whole batch


def test_a_mini_batch_of_dropped_rows_trains_nothing(update: Update) -> None:
    loss, fields = update("reference", True, responses=[[2, 3, 4]] * 4)
    assert fields["loss_mask"].values().eq(0).all()
    assert loss == 0


@pytest.mark.parametrize("num_padding", [1, 3])
def test_padding_turn_rows_affect_no_advantage_and_no_mean(queue: Callable[..., Any], num_padding: int) -> None:
    from verl.utils.tensordict_utils import get_tensordict

    def computed(padding: int) -> tuple[Any, dict[str, float], float]:
        method = rank_method(ask=["genre"], ask_cost=0.1)
        notes = [(0, True, 1, 0.0), (1, False, 1, 1.0), (0, False, 0, 0.5), (0, False, 0, 0.0)]
        extra = [
            {"reward_extra_info": {"rank_returns": [gain, 0.0], "score": gain, "hits": gain}}
            | {TURN: {"turn": turn, "question": question, "asked": asked}}
            for turn, question, asked, gain in notes
        ]
        responses, rows = [*RESPONSES, *[[2, EOS]] * padding], 4 + padding
        mask = nested([[int(row < 4)] * len(ids) for row, ids in enumerate(responses)])
        started = queue(
            tags=[{}] * 4 + [{"is_padding": True}] * padding,
            uid=["a", "a", "a", "a", *["p"] * padding],
            prompts=nested([[7, 8]] * rows),
            responses=nested(responses),
            response_mask=mask,
            loss_mask=mask,
            extra_fields=extra + [extra[2]] * padding,
        )
        metrics: dict[str, float] = {}
        method.assign_credit(None, started.batch, metrics)
        data = get_tensordict(
            {
                name: started.fields[name]
                for name in ("prompts", "responses", "loss_mask", "advantages", "policy_units")
            },
            {"batch_num_tokens": 23, "global_batch_size": rows, "dp_size": 1, "num_padding": padding},
        )
        log_probs = nested([[0.0] + [-1.0] * len(row) + [0.0] for row in responses])
        loss, _ = rank_grpo_loss({"log_probs": log_probs}, data, settings=method.make_loss_settings())
        return started.fields["advantages"].unbind()[:4], metrics, loss.item()

    (plain, logged, loss), (filled, of_filled, of_all) = computed(0), computed(num_padding)
    assert any(row.any() for row in plain)
    assert all(torch.equal(row, other) for row, other in zip(plain, filled, strict=True))
    assert of_filled == logged
    assert of_all == pytest.approx(loss)
    assert loss
