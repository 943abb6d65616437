"""The application for Ray Serve: `import_path: recipes.serving.app:build` in a file of `serve deploy`.

`args` are ServiceSettings (recipes/serving/schema.py). Replicas, autoscaling and resources are Ray Serve's own settings
of the deployments: the one called `front`, and one for each model under its name.
"""

from typing import Any

import ray
from ray import serve
from ray.serve import Application

from recipes.serving.front import Front, FrontWithModel
from recipes.serving.model import ModelServer
from recipes.serving.schema import FRONT, ModelSettings, ServiceSettings

HEALTH_SECONDS = 2.0


def build(args: ServiceSettings) -> Application:
    """What `serve deploy` calls: a replica of each deployment, but for what its file says."""
    return front_and_models(args, replicas=1)


def application(args: ServiceSettings, replicas: int) -> Application:
    """What `convrec serve` runs: one deployment where one process can do all, else the front and the models."""
    return with_model(args) if len(args.models) == replicas == 1 else front_and_models(args, replicas)


def with_model(args: ServiceSettings) -> Application:
    """The front and its only model in one process, a deployment of the model's name."""
    (model,) = args.models
    return FrontWithModel.options(  # type: ignore[attr-defined]
        name=model.name,
        max_ongoing_requests=_more_than(args),
        health_check_period_s=HEALTH_SECONDS,
        ray_actor_options=_resources(model),
    ).bind(args)


def front_and_models(args: ServiceSettings, replicas: int) -> Application:
    """One deployment a model with so many replicas, and the front."""
    names = [model.name for model in args.models]
    if len({*names, FRONT}) <= len(names):
        raise ValueError(f"models: every name once, and none of them {FRONT!r}: {', '.join(names)}")
    most = args.limits.max_concurrent
    models = {
        model.name: _deployment(model, most, replicas).bind(model, args.limits.max_items) for model in args.models
    }
    front = Front.options(  # type: ignore[attr-defined]
        name=FRONT, max_ongoing_requests=_more_than(args), ray_actor_options={"num_cpus": 0}
    )
    return front.bind(args, models)


def _deployment(model: ModelSettings, max_concurrent: int, replicas: int) -> Any:
    return serve.deployment(
        ModelServer,
        name=model.name,
        num_replicas=replicas,
        max_ongoing_requests=max_concurrent,  # vLLM has a queue of its own
        health_check_period_s=HEALTH_SECONDS,
        ray_actor_options=_resources(model),
    )


def _more_than(args: ServiceSettings) -> int:
    """More requests than the limit, so that it is the front that refuses, with a reason."""
    return 2 * args.limits.max_concurrent + 64


def _resources(model: ModelSettings) -> dict[str, float]:
    """GPUs are asked for where Ray has them."""
    return {"num_cpus": 0, "num_gpus": model.tensor_parallel if _has_gpus() else 0}


def _has_gpus() -> bool:
    return ray.is_initialized() and bool(ray.cluster_resources().get("GPU"))
