"""Check whether a run is possible here or on a cluster: versions, devices, data on every node, disk, memory, keys.

The recipes run the same checks on every node before anything expensive.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Literal

from convrec.base.errors import UserError
from convrec.base.options import command
from recipes.cluster import jobs
from recipes.launch.recipe import RANK_GRPO, RECIPES, Recipe
from recipes.launch.settings import compose, compose_elsewhere
from recipes.launch.variables import find_misspelt_variables
from recipes.options.cluster import DoctorOptions
from recipes.preflight import node
from recipes.preflight.checks import require_files
from recipes.preflight.finding import Finding
from recipes.preflight.findings import examine, version_findings


def diagnose(recipe: Recipe, arguments: list[str]) -> list[Finding]:
    """Collect all findings; wrong settings or data do not stop the checks that work without them.

    Args:
        recipe: the recipe.
        arguments: overrides of its command line.
    """
    findings: list[Finding] = []

    def note(status: Literal["warning", "failure"], text: str) -> None:
        findings.append(Finding("settings and data", status, recipe.name, text, "see the message"))

    for warning in find_misspelt_variables(os.environ):
        note("warning", warning)
    try:
        run = compose(recipe.name, arguments)
    except UserError as error:
        note("failure", str(error))
        with suppress(UserError):  # a finding already
            settings = compose_elsewhere(recipe, arguments).settings
            try:
                require_files(settings)
            except UserError as missing:
                note("failure", str(missing))
        return findings + version_findings("driver")
    try:
        for warning in recipe.check(run):
            note("warning", warning)
    except UserError as error:
        note("failure", str(error))
    findings = findings or [Finding("settings and data", "ok", recipe.name, "read and checked")]
    try:
        on_cluster = node.connect()
        return findings + examine(run, on_cluster)
    except UserError as error:
        return [*findings, Finding("ray", "failure", os.environ.get("RAY_ADDRESS", ""), str(error), "see the message")]


def print_findings(findings: Sequence[Finding], as_json: bool) -> int:
    """Print findings.

    Args:
        findings: in the order of printing.
        as_json: print one JSON object instead of a line per finding.

    Returns:
        The exit status: 1 if one is a failure, else 0.
    """
    is_well = all(finding.status != "failure" for finding in findings)
    if as_json:
        print(json.dumps({"ok": is_well, "findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            fix = f"\n         -> {finding.fix}" if finding.fix else ""
            print(f"{finding.status:8} {finding.check}: {finding.where}: {finding.what}{fix}")
    return 0 if is_well else 1


@command(DoctorOptions)
def main(options: DoctorOptions) -> int:
    """Check a recipe here or on RAY_ADDRESS; return the exit status."""
    arguments = list(options.words)
    as_json = options.json
    recipe = RECIPES[arguments.pop(0)] if arguments and arguments[0] in RECIPES else RANK_GRPO
    if os.environ.get("RAY_ADDRESS", "").startswith("http"):
        try:
            return jobs.diagnose_there(recipe, arguments, as_json)
        except UserError as error:
            return print_findings(
                [Finding("ray", "failure", os.environ["RAY_ADDRESS"], str(error), "see the message")], as_json
            )
    return print_findings(diagnose(recipe, arguments), as_json)
