"""docs/examples/one_step.py compared with the trainer on the same lists."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from convrec.lists.token_ranks import table_from_bytes
from convrec.rank_grpo.credit import CreditSettings
from convrec.settings.run import Run
from convrec.training.loss import rank_grpo_loss
from convrec.training.rank_method import RankMethod
from recipes.launch.recipe import RANK_GRPO
from recipes.plan import compose_planned_run
from reward.catalog_match import compute_score
from tests.convrec.conftest import nested

FILE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "one_step.py"


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """On one thread, as the command has it."""
    spec = spec_from_file_location("one_step", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def make_method(example: ModuleType) -> RankMethod:
    """The paper's settings, except for those that the example sets or leaves out."""
    changes = [f"convrec.num_items={example.N}", "actor_rollout_ref.actor.use_kl_loss=false"]
    config = compose_planned_run(RANK_GRPO, changes).verl_config
    table = table_from_bytes([word.encode() for word in example.WORDS])
    return RankMethod(
        Run.from_config(config), CreditSettings(example.N, table, [example.END]), pad_token_id=example.END
    )


def test_the_example_computes_what_the_trainer_computes(
    example: ModuleType, queue: Callable[..., Any], tmp_path: Path
) -> None:
    """From texts to the gradient of every weight: reward, advantages and loss as verl calls them, in its layout."""
    from verl.utils.tensordict_utils import get_tensordict

    found, method = example.step(), make_method(example)
    assert found["gain"] > 0
    titles, years = zip(*example.CATALOG, strict=True)
    pq.write_table(pa.table({"title": titles, "year": years}), tmp_path / "catalog.parquet")
    truth = {"groundtruth": example.LIKED, "seen": example.SEEN}
    scored = {
        "catalog_path": str(tmp_path / "catalog.parquet"),
        "num_items": example.N,
        "reward": method.settings.reward,
    }
    infos = [{"reward_extra_info": compute_score("", text, truth, **scored)} for text in found["texts"]]

    responses, mask = nested(found["responses"]), nested([[1] * len(row) for row in found["responses"]])
    started = queue(
        tags=[{}] * example.G,
        uid=["one conversation"] * example.G,
        prompts=nested([example.PROMPT] * example.G),
        responses=responses,
        response_mask=mask,
        loss_mask=mask,
        extra_fields=infos,
    )
    method.assign_credit(None, started.batch, {})
    lengths = [len(row) for row in found["responses"]]
    for name, computed in (("advantages", found["advantages"]), ("policy_units", found["units"] + 1)):
        rows = [row[:length] for row, length in zip(computed, lengths, strict=True)]
        torch.testing.assert_close(started.fields[name].values(), torch.cat(rows), rtol=0, atol=1e-7)
    assert found["advantages"].abs().max() > 0.5

    policy, log_probs = example.tiny_policy(seed=0), []
    for row in found["responses"]:  # verl's: of every token given those before it, the last of a row is no one's
        tokens = torch.tensor([example.PROMPT + row])
        of_row = policy(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        log_probs.append(torch.nn.functional.pad(of_row, (0, 1)))
    names = ("prompts", "responses", "loss_mask", "advantages", "policy_units")
    counts = {"batch_num_tokens": sum(lengths), "global_batch_size": example.G, "dp_size": 1}
    data = get_tensordict({name: started.fields[name] for name in names}, counts)
    output = {"log_probs": torch.nested.as_nested_tensor(log_probs, layout=torch.jagged)}
    loss, _ = rank_grpo_loss(output, data, settings=method.make_loss_settings())
    loss.backward()
    assert loss.item() == pytest.approx(found["loss"], abs=1e-7)
    for name, weight in policy.named_parameters():
        torch.testing.assert_close(weight.grad, found["gradient"][name], rtol=1e-4, atol=1e-6)


def test_it_is_short_and_runs_without_verl_ray_and_vllm() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 150
    code = (
        f"import runpy, sys; runpy.run_path({str(FILE)!r}, run_name='__main__');"
        "print([name for name in ('verl', 'ray', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=FILE.parents[2], capture_output=True, text=True, check=True)
    *_, gain, heavy = done.stdout.splitlines()
    assert "a gain of 0.0" in gain
    assert heavy == "[]"
    assert done.stdout.count("\nlist ") == 8
