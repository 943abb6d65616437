"""Run mutmut, changed in four ways.

- It also mutates properties and functions with a cache. mutmut leaves decorated functions alone, because a decorator
  may register each copy of a function; ours do not, and a copy goes without them. Modules' constants are not mutated.
- Caches are emptied before the tests of a mutant, which must not get results that are not its own. To find out which
  tests call a function, they are emptied before each test.
- Of arguments, only those by keyword are left out. None for an argument, or a call without a positional one, is for
  mypy to find, and these were half of all mutants. `strict=True` of zip only guards against our own mistakes.
- The command `confirm` tries survivors again with all tests of their package, each in a process of its own: what runs
  when a module is imported has run before a mutant's process is forked.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import click
import libcst as cst
from mutmut.__main__ import cli, collect_source_file_mutation_data
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.trampoline import get_mutant_under_test
from mutmut.runners.harness import PytestRunner
from mutmut.stats import status_by_exit_code

MOST_SECONDS = 600  # of all tests of a package
DECORATORS = frozenset({"cache", "lru_cache", "cache_per_instance", "property", "cached_property"})

skip_node_and_children = file_mutation.MutationVisitor._skip_node_and_children
arrange_trampoline = file_mutation.function_trampoline_arrangement
execute_pytest = PytestRunner.execute_pytest


def may_lose_decorators(node: cst.CSTNode) -> bool:
    """Return whether a node is a decorated function whose copies need none of its decorators."""
    if not isinstance(node, cst.FunctionDef) or not node.decorators:
        return False
    decorators = [decorator.decorator for decorator in node.decorators]
    names = [decorator.func if isinstance(decorator, cst.Call) else decorator for decorator in decorators]
    return all(isinstance(name, cst.Name) and name.value in DECORATORS for name in names)


def skip_unless_cached(self: file_mutation.MutationVisitor, node: cst.CSTNode) -> bool:
    return not may_lose_decorators(node) and skip_node_and_children(self, node)


def arrange_undecorated(
    function: cst.FunctionDef, mutants: Iterable[file_mutation.Mutation], class_name: str | None
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[str]]:
    """Return mutmut's nodes for a function: declarations, the trampoline and the copies, assignments, names."""
    declarations, (trampoline, *copies), assignments, names = arrange_trampoline(function, mutants, class_name)
    if may_lose_decorators(function):
        copies = [copy.with_changes(decorators=[]) for copy in copies]
    return declarations, [trampoline, *copies], assignments, names


def leave_out_keywords(node: cst.Call) -> Iterable[cst.Call]:
    """Yield a call without each of its keyword arguments."""
    for index, argument in enumerate(node.args):
        if argument.keyword and argument.keyword.value != "strict":
            yield node.with_changes(args=[*node.args[:index], *node.args[index + 1 :]])


class EmptyCaches:
    """A plugin of pytest that empties the caches of our modules and of the tests' own."""

    is_first = True

    def pytest_runtest_setup(self) -> None:
        if self.is_first or get_mutant_under_test() == "stats":
            self.is_first = False
            for name, module in list(sys.modules.items()):
                if name.startswith(("convrec.", "tests.")):
                    for value in vars(module).values():
                        if isinstance(value, _lru_cache_wrapper):
                            value.cache_clear()


def execute_with_empty_caches(self: PytestRunner, params: list[str], plugins: Sequence[object] = ()) -> int:
    return execute_pytest(self, params, plugins=[*plugins, EmptyCaches()])


def run_alone(mutant: str, module: Path) -> int:
    """Run the selected tests of a mutant's package in a new process.

    Returns:
        0 if they pass, 1 if not (a mutant may also break an import), and 36 for a timeout.
    """
    folder = "tests" / module.parent
    selection = map(Path, config().pytest_add_cli_args_test_selection)
    tests = [path for path in selection if path.is_relative_to(folder) or folder.is_relative_to(path)]
    command = [sys.executable, "-m", "pytest", "-qx", *config().pytest_add_cli_args, *map(str, tests)]
    environment = os.environ | {"MUTANT_UNDER_TEST": mutant}
    try:
        ended = subprocess.run(command, cwd="mutants", env=environment, stdout=subprocess.DEVNULL, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return 36
    return int(ended.returncode != 0)


@cli.command()
@click.argument("names", nargs=-1)
def confirm(names: tuple[str, ...]) -> None:
    """Try the mutants that survived again, and count all results by package."""
    counts: Counter[tuple[str, str]] = Counter()
    mutants, _ = collect_source_file_mutation_data(mutant_names=names)
    for module, mutant, exit_code in mutants:
        if status_by_exit_code[exit_code] in ("survived", "no tests"):
            exit_code = run_alone(mutant, Path(module.path))
            module.exit_code_by_key[mutant] = exit_code
            module.save()
        counts[str(Path(module.path).parent), status_by_exit_code[exit_code]] += 1
    for (package, status), count in sorted(counts.items()):
        print(f"{package}: {count} {status}")


if __name__ == "__main__":
    at = mutators.mutation_operators.index((cst.Call, mutators.operator_arg_removal))
    mutators.mutation_operators[at] = (cst.Call, leave_out_keywords)
    file_mutation.MutationVisitor._skip_node_and_children = skip_unless_cached
    file_mutation.function_trampoline_arrangement = arrange_undecorated
    PytestRunner.execute_pytest = execute_with_empty_caches
    cli()
