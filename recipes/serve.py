"""Serve trained models: recommendations and chat completions over HTTP, and a chat page at /. docs/how-to/serve.md"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pydantic import ValidationError

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.checkpoints.models import check_model_path, pin_checkpoint, split_choice
from convrec.inference.served_catalog.columns import find_items, read_columns
from convrec.inference.served_catalog.mentions import write_mentions
from convrec.inference.served_model import get_name
from convrec.retrieval.folder import load_notes
from convrec.titles.catalog import SUFFIXES, load_catalog, print_problems
from recipes.options.serve import ServeOptions
from recipes.serving.keys import read_keys
from recipes.serving.list_ids import ListIds
from recipes.serving.schema import Filter, Limits, ModelSettings, ServiceSettings, is_loopback, read_service_key

Value = TypeVar("Value")


def make_service_settings(options: ServeOptions) -> ServiceSettings:
    """Make the settings of a service from options.

    Raises:
        UserError: there is no model, two have the same name, or an option or the file of keys is wrong; before anything
            starts.
    """
    if not options.model and not options.judge:
        raise UserError(
            "serving.no-model",
            "--model: no model to serve. Name --model RUN --catalog FILE, or --judge RUN; see --help.",
        )
    models = [
        *_make_recommenders(options),
        *(_make_model_settings(judge, None, None, options) for judge in options.judge),
    ]
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        raise UserError(
            "serving.duplicate-model-name",
            f"{', '.join(names)}: two models have the same name. Write --model NAME=MODEL.",
        )
    loopback = is_loopback(options.host)
    keys = str(options.keys.resolve()) if options.keys else None
    if keys:
        read_keys(Path(keys))
    read_service_key(loopback, keys)
    return ServiceSettings(
        models=models,
        limits=_make_limits(options),
        filters=[_parse_filter(text) for text in options.filter],
        keys=keys,
        feedback=str(options.state.resolve()) if options.feedback else None,
        loopback=loopback,
        strict=options.strict,
    )


def _make_recommenders(options: ServeOptions) -> list[ModelSettings]:
    """Make the settings of each --model, with its catalog and its retrieval."""
    count = len(options.model)
    if not count:
        return []
    if len(options.catalog) not in (1, count):
        raise UserError(
            "serving.catalog-count",
            f"--catalog: {len(options.catalog)} for {count} --model. Name one for all, or one for each.",
        )
    for catalog in options.catalog:
        if not Path(catalog).is_file():
            raise UserError("serving.missing-catalog", f"--catalog {catalog}: no such file")
        if Path(catalog).suffix not in SUFFIXES:
            raise UserError(
                "serving.catalog-format",
                f"--catalog {catalog}: neither .parquet nor .pkl. Make a catalog with `convrec data own`.",
            )
    folders: list[str | None] = [str(folder.resolve()) for folder in options.retrieval if load_notes(folder)]
    if len(folders) not in (0, 1, count):
        raise UserError(
            "serving.retrieval-count",
            f"--retrieval: {len(folders)} for {count} --model. Name one for all, or one for each.",
        )
    catalogs = _repeat_for_models(options.catalog, count)
    retrievals = _repeat_for_models(folders or [None], count)
    return [
        _make_model_settings(text, catalog, retrieval, options)
        for text, catalog, retrieval in zip(options.model, catalogs, retrievals, strict=True)
    ]


def _repeat_for_models(values: Sequence[Value], count: int) -> list[Value]:
    """Return one value for each of `count` models; a single value applies to all."""
    return list(values) * count if len(values) == 1 else list(values)


def _make_limits(options: ServeOptions) -> Limits:
    try:
        return Limits(**asdict(options.limits))
    except ValidationError as error:
        (name, *_) = error.errors()[0]["loc"]
        message = error.errors()[0]["msg"]
        raise UserError("serving.invalid-limit", f"--{str(name).replace('_', '-')}: {message}") from None


def _make_model_settings(text: str, catalog: str | None, retrieval: str | None, options: ServeOptions) -> ModelSettings:
    name, is_named, path = text.partition("=")
    if not is_named or "/" in name:
        name = ""
        path = text
    option = "--model " if catalog else "--judge "
    path = check_model_path(path, option)
    checkpoint = Path(pin_checkpoint(path))  # also for a process that restarts when a better one has been saved
    run, _ = split_choice(path)
    folder = Path(run)
    # checkpoints of all runs end in the same folder name, so get_name includes the run's
    state = (options.state / (name or get_name(folder.resolve()).replace("/", "-"))).resolve()
    try:
        return ModelSettings(
            name=name or (folder.resolve().name if folder.is_dir() else folder.name),
            path=str(checkpoint.resolve()) if folder.is_dir() else path,
            catalog=str(Path(catalog).resolve()) if catalog else None,
            state=str(state) if catalog else None,
            retrieval=retrieval,
            show=list(options.mentions.show),
            tensor_parallel=options.tensor_parallel,
        )
    except ValidationError:
        raise UserError(
            "serving.invalid-model-name",
            f"{option}{text}: invalid as a model's name. Add one of letters, digits, '.', '_' and '-': NAME={path}",
        ) from None


def _parse_filter(text: str) -> Filter:
    label, _, where = text.partition("=")
    try:
        return Filter.model_validate({"label": label.strip(), "where": json.loads(where)})
    except ValueError:  # from JSON or pydantic
        example = """--filter 'In stock={"in_stock": true}'"""
        raise UserError(
            "serving.invalid-filter",
            f"--filter {text}: not LABEL=JSON. Write a label and conditions, such as {example}.",
        ) from None


def check_filters(settings: ServiceSettings) -> None:
    """Check that the catalogs of a service support its filters.

    Args:
        settings: whose catalogs are read.

    Raises:
        UserError: a catalog lacks a column of a filter, or has it with another type.
    """
    for catalog in dict.fromkeys(model.catalog for model in settings.models if model.catalog):
        columns = read_columns(Path(catalog), load_catalog(catalog))
        for filter_ in settings.filters:
            try:
                find_items(filter_.where, columns.schema, [], lambda name, kind: pa.array([], kind))
            except UserError as error:
                raise UserError(error.code, f"--filter {filter_.label}: {catalog}: {error}") from None


def report_skipped_items(settings: ServiceSettings) -> None:
    """Print which rows of the catalogs cannot be recommended.

    Args:
        settings: whose catalogs are read.

    Raises:
        UserError: a catalog cannot be read.
    """
    for catalog in dict.fromkeys(model.catalog for model in settings.models if model.catalog):
        print_problems(catalog, load_catalog(catalog).problems)


@command(ServeOptions)
def main(options: ServeOptions) -> int:
    """Serve models until Ctrl-C; return the exit status."""
    address = f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{options.port}"
    try:
        settings = make_service_settings(options)
        report_skipped_items(settings)
        if settings.filters:
            check_filters(settings)
        if settings.feedback:
            ListIds(Path(settings.feedback))  # reports an unusable folder before models start
        for catalog in dict.fromkeys(options.catalog):
            write_mentions(options.mentions.train, Path(catalog))
        from recipes.serving.local import serve_here

        names = ", ".join(model.name for model in settings.models)
        print(f"starting {names}", file=sys.stderr, flush=True)

        def ready(max_items: Mapping[str, int]) -> None:
            for name, most in max_items.items():
                if 0 < most < options.limits.max_items:
                    print(
                        f"{name}: --max-items is {most}: the model's context has no room for longer lists",
                        file=sys.stderr,
                    )
            page = f"; the chat page: {address}/" if settings.models[0].catalog else f"; {address}/v1/chat/completions"
            print(f"serving {names}{page} (Ctrl-C stops)", flush=True)

        serve_here(settings, options.host, options.port, options.replicas, options.state, ready)
    except KeyboardInterrupt:
        return 130
    return 0
