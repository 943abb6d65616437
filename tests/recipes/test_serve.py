"""`convrec serve`: what its command line means, and what it refuses before anything starts."""

import json
import os
import socket
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.base.options import parse
from convrec.checkpoints.models import find_step
from convrec.inference.engines import placement
from convrec.inference.served_model import find_model
from convrec.retrieval.folder import FORMAT
from recipes.options.serve import ServeOptions
from recipes.serve import check_filters, make_service_settings, report_skipped_items
from recipes.serving import local
from recipes.serving.keys import KEY_VARIABLE
from recipes.serving.local import bind_socket
from tests.user_errors import refuses


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two model folders and a catalog, as far as they are looked at here."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("films", "books model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "catalog.parquet").touch()
    return tmp_path


def settings(*arguments):
    return make_service_settings(parse(ServeOptions, arguments))


def test_models_have_names_catalogs_and_folders_for_changes(files):
    both = ["--model", "films", "--model", "b=books model", "--catalog", "catalog.parquet"]
    service = settings(*both, "--judge", "j=films")
    assert [(model.name, model.path) for model in service.models] == [
        ("films", str(files / "films")), ("b", str(files / "books model")), ("j", str(files / "films"))
    ]  # fmt: skip
    assert [model.catalog for model in service.models] == [str(files / "catalog.parquet")] * 2 + [None]
    state = files / "outputs" / "serve"
    assert [model.state for model in service.models] == [str(state / "films"), str(state / "b"), None]
    assert service.feedback is None  # conversations are not kept unless the operator asks
    assert settings(*both, "--feedback").feedback == str(state)
    assert service.loopback


def test_a_run_is_served_from_the_checkpoint_of_the_start_though_a_better_one_is_saved(files, validated_run, capsys):
    """Replicas, the fallback and a process that restarts look the model up later."""
    for given, step in ((str(validated_run), 100), (f"{validated_run}@last", 200)):
        (model,) = settings("--model", given, "--catalog", "catalog.parquet").models
        assert (model.name, model.path) == ("validated", str(validated_run / f"global_step_{step}"))
        assert model.state == str(files / "outputs" / "serve" / "validated")
        assert f"{validated_run}: checkpoint of step {step}, " in capsys.readouterr().err
        served = find_model(model.path, Path(model.catalog), None, None)
        assert served.version.startswith(f"validated/global_step_{step}-")
        (validated_run / "best.json").write_text(json.dumps({"step": 300 - step}))
        assert find_model(model.path, Path(model.catalog), None, None) == served
        assert find_step(given) == (200 if step == 100 else step)
        (validated_run / "best.json").write_text('{"step": 100}')


def test_show_columns_and_fallback_wait_apply_to_every_model(files):
    common = ["--model", "films", "--catalog", "catalog.parquet", "--judge", "j=films", "--show", "price,link"]
    service = settings(*common, "--fallback-after-seconds", "2.5")
    assert [model.show for model in service.models] == [["price", "link"]] * 2  # a judge has no items
    assert service.limits.fallback_after_seconds == 2.5
    assert settings(*common).limits.fallback_after_seconds is None


def test_a_retrieval_is_one_for_all_models_or_one_for_each(files):
    both = ["--model", "films", "--model", "b=books model", "--catalog", "catalog.parquet", "--judge", "j=films"]
    (files / "r").mkdir()
    (files / "r" / "retrieval.json").write_text(json.dumps({"format": FORMAT}))
    assert [model.retrieval for model in settings(*both).models] == [None] * 3
    assert [model.retrieval for model in settings(*both, "--retrieval", "r").models] == [str(files / "r")] * 2 + [None]
    with pytest.raises(UserError, match="--retrieval none: "):
        settings(*both, "--retrieval", "none")
    with refuses("serving.retrieval-count", "--retrieval: 3 for 2 --model"):
        settings(*both, *["--retrieval", "r"] * 3)


def test_command_line_filters_reach_the_service_and_are_checked(files):
    pq.write_table(pa.table({"title": ["Dune"], "year": [1965], "price": [9.5]}), files / "catalog.parquet")
    common = ["--model", "films", "--catalog", "catalog.parquet"]
    service = settings(
        *common, "--filter", 'Below 20={"price": {"max": 20}}', "--filter", 'Above 5={"price": {"min": 5}}'
    )
    assert [one.label for one in service.filters] == ["Below 20", "Above 5"]
    check_filters(service)
    with pytest.raises(UserError, match=r"--filter Red: .*colour"):
        check_filters(settings(*common, "--filter", 'Red={"colour": "red"}'))


def test_changes_of_two_runs_and_of_two_steps_are_kept_apart(files):
    names = {}
    for path in ("a/global_step_2", "a/global_step_4", "b/global_step_4", "b/global_step_4/actor/huggingface"):
        folder = files / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (model,) = settings("--model", path, "--catalog", "catalog.parquet").models
        names[path] = Path(model.state).name
    assert [*names.values()] == ["a-global_step_2", "a-global_step_4", "b-global_step_4", "b-global_step_4"]


def test_unusable_catalog_rows_are_reported_once_and_counted(files, capsys):
    years = [1995, *[None] * 7]
    pq.write_table(pa.table({"title": [f"Film {n}" for n in range(8)], "year": years}), files / "catalog.parquet")
    report_skipped_items(settings("--model", "films", "--model", "b=books model", "--catalog", "catalog.parquet"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert lines[-1].endswith("catalog.parquet: 2 more such entries")


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ([], "serving.no-model", "--model"),
        (["--model", "films"], "serving.catalog-count", "--catalog: 0 for 1 --model"),
        (["--model", "films", "--catalog", "no.parquet"], "serving.missing-catalog", "--catalog no.parquet"),
        (["--model", "films", "--catalog", "films/config.json"], "serving.catalog-format", "films/config.json"),
        (["--model", "books model", "--catalog", "catalog.parquet"], "serving.invalid-model-name", "books model"),
        (
            ["--model", "films", "--judge", "films", "--catalog", "catalog.parquet"],
            "serving.duplicate-model-name",
            "films, films",
        ),
        (["--judge", "films", "--host", "0.0.0.0"], "serving.missing-key", KEY_VARIABLE),
        (["--judge", "films", "--drain-seconds", "301"], "serving.invalid-limit", "--drain-seconds"),
        (["--judge", "films", "--filter", "Cheap"], "serving.invalid-filter", "--filter Cheap"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(files, arguments, code, value):
    with refuses(code, value):
        settings(*arguments)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--model", "nothing", "--catalog", "catalog.parquet"], "--model nothing"),
        (["--judge", "films", "--max-items", "0"], "--max-items 0"),
        (["--judge", "films", "--fallback-after-seconds", "0"], "--fallback-after-seconds 0"),
        (["--judge", "films", "--replicas", "0"], "--replicas 0"),
        (["--judge", "films", "--tensor-parallel", "0"], "--tensor-parallel 0"),
    ],
)
def test_invalid_values_are_refused_before_anything_starts(files, arguments, value):
    with pytest.raises(UserError, match=value):
        settings(*arguments)


def test_a_key_opens_the_service_to_other_machines(files, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "k")
    assert not settings("--judge", "films", "--host", "0.0.0.0").loopback
    monkeypatch.setenv(KEY_VARIABLE, "schlüssel")  # no header can have it
    with refuses("serving.unencodable-key", KEY_VARIABLE):
        settings("--judge", "films", "--host", "0.0.0.0")


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost", "LOCALHOST"])
def test_the_loopback_needs_no_key(files, host):
    assert settings("--judge", "films", "--host", host).loopback


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with refuses("serving.unavailable-address", f"--port {port}"):
            bind_socket("127.0.0.1", port)
    for number in (0, -1, 99999):
        with refuses("serving.invalid-port", f"--port {number}"):
            bind_socket("127.0.0.1", number)


def test_more_engines_than_gpus_are_refused_before_any_start(files, monkeypatch, tmp_path):
    """One GPU is played: two models, or two engines of one, would each take most of its memory."""
    asked = settings("--judge", "one=films", "--judge", "two=films")
    monkeypatch.setattr(placement, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(local, "ModelProcess", lambda *_: pytest.fail("an engine was started"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refusal = pytest.raises(UserError, match=r"2 models with 1 replicas each: ")
    with refusal, mock.patch.dict(os.environ):
        local.serve_here(asked, "127.0.0.1", port, 1, tmp_path / "logs", lambda _: None)
