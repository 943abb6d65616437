"""What Ray Serve deploys: the application's deployments, and the files of docs/examples."""

from importlib import metadata
from pathlib import Path

import pytest
import yaml
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve.schema import ServeDeploySchema

from recipes.serving.app import FRONT, build
from recipes.serving.schema import KEY_VARIABLE, ModelSettings, ServiceSettings

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"


def test_every_model_is_a_deployment_with_a_unique_name():
    models = [ModelSettings(name=name, path="x") for name in ("books", "films")]
    built = build(ServiceSettings(models=models))
    settings, bound = built._bound_deployment.init_args
    assert [app._bound_deployment.name for app in bound.values()] == ["books", "films"]
    assert built._bound_deployment.name == FRONT
    assert settings.limits.max_concurrent < built._bound_deployment.max_ongoing_requests
    for names in (("books", "books"), ("books", FRONT)):
        with pytest.raises(ValueError, match=names[0]):
            build(ServiceSettings(models=[ModelSettings(name=name, path="x") for name in names]))


def test_replicas_that_start_later_get_the_checkpoint_of_the_deployment(validated_run):
    built = build(ServiceSettings(models=[ModelSettings(name="films", path=str(validated_run))]))
    settings, bound = built._bound_deployment.init_args
    (model, _) = bound["films"]._bound_deployment.init_args
    assert model.path == settings.models[0].path == str(validated_run / "global_step_100")


def check_policy(policy):
    """Of the pods' ports those of others than they themselves: 8000 for all, the dashboard for the operator."""
    assert (policy["kind"], policy["spec"]["policyTypes"]) == ("NetworkPolicy", ["Ingress"])
    among_them, requests, operator = policy["spec"]["ingress"]
    assert among_them == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    assert requests == {"ports": [{"protocol": "TCP", "port": 8000}]}
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert operator["from"][0]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_examples_are_valid_for_ray_serve_and_the_application(name):
    read, *policies = yaml.safe_load_all((EXAMPLES / name).read_text())
    if read.get("kind") == "RayService":
        cluster = read["spec"]["rayClusterConfig"]
        assert cluster["rayVersion"] == metadata.version("ray")
        (workers,) = cluster["workerGroupSpecs"]
        for group in (cluster["headGroupSpec"], workers):
            (container,) = group["template"]["spec"]["containers"]
            assert KEY_VARIABLE in {variable["name"] for variable in container["env"]}
            assert group["template"]["metadata"]["labels"] == policies[0]["spec"]["podSelector"]["matchLabels"]
        check_policy(*policies)
        read = yaml.safe_load(read["spec"]["serveConfigV2"])
    (described,) = ServeDeploySchema.model_validate(read).applications
    assert described.import_path == f"{build.__module__}:{build.__name__}"
    assert call_user_app_builder_with_args_if_necessary(build, described.args)._bound_deployment.name == FRONT
    settings = ServiceSettings.model_validate(described.args)
    assert not settings.loopback  # so the front starts with a key alone
    assert {one.name for one in described.deployments} <= {FRONT, *(model.name for model in settings.models)}
    assert all(model.state for model in settings.models if model.catalog)
