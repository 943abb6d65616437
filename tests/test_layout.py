"""Imports point one way, folder by folder; there is no circle, and light modules stay light."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("convrec", "reward", "data_prep", "recipes")

# What each folder may import of ours. `convrec.X` is a folder or a module beside them; "commands" are the modules right
# under recipes/ and data_prep/. Every folder must stand here: a new one is a decision.
BASE = {"convrec.base"}
LOW = BASE | {"convrec.data", "convrec.titles", "convrec.lists", "convrec.runs", "convrec.llm"}
MIDDLE = LOW | {"convrec.settings", "convrec.rank_grpo", "convrec.checkpoints", "convrec.retrieval", "convrec.features"}
VERL = MIDDLE | {"convrec.rollout", "convrec.cpu"}
LIBRARY = VERL | {"convrec.training", "convrec.judges", "convrec.inference", "convrec.report"}
# records of options: beside them only those of the library, which the light modules below hold
OPTIONS = {"convrec.base", "convrec.data", "convrec.inference"}
MAY_IMPORT: dict[str, set[str]] = {
    "convrec.api": BASE | {"convrec.runs", "convrec.checkpoints", "convrec.settings"},
    "convrec.base": set(),
    "convrec.data": BASE,
    "convrec.titles": BASE,
    "convrec.lists": BASE | {"convrec.titles"},
    "convrec.runs": BASE,
    "convrec.llm": BASE | {"convrec.data"},
    "convrec.rank_grpo": LOW,
    "convrec.settings": LOW | {"convrec.rank_grpo"},
    "convrec.checkpoints": LOW,
    "convrec.retrieval": LOW,
    "convrec.features": MIDDLE,
    "convrec.inference": MIDDLE | {"convrec.cpu"},
    "convrec.report": MIDDLE,
    "convrec.rollout": MIDDLE,
    "convrec.cpu": MIDDLE | {"convrec.rollout"},
    "convrec.training": VERL,
    "convrec.judges": VERL | {"convrec.training"},
    "reward": LIBRARY,
    "data_prep.options": OPTIONS,
    "data_prep.sample_data": LIBRARY,
    "data_prep.own_data": LIBRARY | {"data_prep.commands", "data_prep.options"},
    "data_prep.stages": LIBRARY | {"data_prep.commands", "data_prep.options"},
    "data_prep.judge_data": LIBRARY | {"data_prep.commands"},
    "data_prep.commands": LIBRARY
    | {"data_prep.options", "data_prep.sample_data", "data_prep.own_data", "data_prep.stages", "data_prep.judge_data"},
    "recipes.options": OPTIONS,
    "recipes.planning": LIBRARY,
    "recipes.preflight": LIBRARY | {"recipes.planning"},
    "recipes.launch": LIBRARY | {"recipes.planning", "recipes.preflight"},
    "recipes.cluster": LIBRARY | {"recipes.launch", "recipes.preflight"},
    "recipes.evaluation": LIBRARY,
    "recipes.experiments": LIBRARY
    | {"recipes.planning", "recipes.preflight", "recipes.launch", "recipes.cluster", "recipes.evaluation"},
    "recipes.demos": LIBRARY | {"recipes.options", "recipes.cluster", "recipes.experiments"},
    "recipes.batch": LIBRARY,
    "recipes.selftest": LIBRARY | {"recipes.preflight", "recipes.commands", "data_prep.commands"},
    "recipes.serving": LIBRARY | {"recipes.launch", "recipes.preflight"},
    "recipes.judge": LIBRARY | {"recipes.options", "recipes.launch", "recipes.preflight", "recipes.evaluation"},
}
MAY_IMPORT["recipes.commands"] = {*MAY_IMPORT, "recipes.commands"} - {"recipes.commands"}

# Heavy libraries and the only places of the library that may name them; recipes may name any.
SEAMS = {
    "verl": (
        "convrec/training/",
        "convrec/rollout/",
        "convrec/cpu/",
        "convrec/checkpoints/models.py",
        "convrec/features/responses.py",
        "convrec/judges/dataset.py",
        "convrec/judges/method.py",
        "convrec/judges/trainer.py",
    ),
    "ray": ("convrec/training/", "convrec/rollout/", "convrec/cpu/"),
    "transfer_queue": ("convrec/training/", "convrec/rollout/", "convrec/judges/method.py"),
    "vllm": (
        "convrec/rollout/server.py",
        "convrec/cpu/",
        "convrec/inference/",
        "convrec/features/constrained/vllm_processor.py",
    ),
}
LIGHT = ("base", "data", "titles", "lists", "judges", "runs", "checkpoints.saving", "checkpoints.files", "settings")
NOT_LIGHT = {
    "convrec.lists.token_ranks",  # tensors
    "convrec.judges.dataset",  # verl's, as the two below
    "convrec.judges.method",
    "convrec.judges.trainer",
}
HEAVY = ("torch", "pandas", "verl", "ray", "vllm", "transformers", "datasets", "sklearn", "matplotlib")

# A command imports no other command, but for these, and for recipes/cli.py, which starts them.
COMMANDS = {
    ("recipes/demo", "recipes/report"),
    ("recipes/demo", "recipes/retrieval"),
    ("recipes/demo", "recipes/tiny_model"),
    ("recipes/report", "recipes/plot"),
    ("recipes/matrix", "recipes/plot"),
    ("data_prep/judge_sample", "data_prep/judge"),
    ("data_prep/feedback", "data_prep/own"),
    ("data_prep/ratings", "data_prep/own"),
}

FILES = sorted(path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def imported(file: str) -> Iterator[str]:
    """Dotted names of what a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module
            is_package = (ROOT / node.module.replace(".", "/")).is_dir()
            yield from (f"{node.module}.{alias.name}" if is_package else node.module for alias in node.names)


def folder_of(dotted: str) -> str:
    """`convrec.lists.ranks` -> `convrec.lists`, `recipes.doctor` -> `recipes.commands`, `reward.x` -> `reward`."""
    package, *rest = dotted.split(".")
    if package == "reward" or not rest:
        return package
    if package == "convrec" or (ROOT / package / rest[0]).is_dir():
        return f"{package}.{rest[0]}"
    return f"{package}.commands"


def own_imports(file: str) -> set[str]:
    return {name for name in imported(file) if name.split(".")[0] in PACKAGES}


def dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@pytest.mark.parametrize("file", FILES)
def test_a_folder_imports_only_what_stands_below_it(file: str) -> None:
    folder = folder_of(dotted(file))
    if folder in PACKAGES and folder != "reward":
        return  # a package's own __init__
    assert folder in MAY_IMPORT, f"say in tests/test_layout.py what {folder} may import"
    assert {folder_of(name) for name in own_imports(file)} <= MAY_IMPORT[folder] | {folder}


def test_modules_import_each_other_in_no_circle() -> None:
    modules = {dotted(file) for file in FILES}
    graph = {dotted(file): own_imports(file) & modules - {dotted(file)} for file in FILES}
    TopologicalSorter(graph).prepare()  # CycleError names the circle


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith("recipes/")])
def test_verl_ray_and_vllm_stay_at_their_seams(file: str) -> None:
    packages = {name.split(".")[0] for name in imported(file)}
    for package, places in SEAMS.items():
        assert package not in packages or file.startswith(places), f"{file} imports {package}"


def test_a_command_imports_no_other_command() -> None:
    commands = {file for file in FILES if file.count("/") == 1 and "\ndef main(" in (ROOT / file).read_text()}
    commands -= {"recipes/cli.py"}
    for file in commands:
        for name in own_imports(file):
            other = name.replace(".", "/") + ".py"
            if other in commands and other != file:
                assert (file.removesuffix(".py"), other.removesuffix(".py")) in COMMANDS


def test_light_modules_import_nothing_heavy() -> None:
    """All of them in one process; the rank grammar's token half is what needs torch."""
    prefixes = tuple(f"convrec.{name}" for name in LIGHT)
    light = [name for name in map(dotted, FILES) if name.startswith(prefixes) and name not in NOT_LIGHT]
    assert len(light) > 20
    code = f"""
import importlib, sys
for name in {light!r}:
    importlib.import_module(name)
    heavy = [module for module in {HEAVY!r} if module in sys.modules]
    if heavy:
        sys.exit(f"{{name}} imports {{', '.join(heavy)}}")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_temporary_names_of_files_are_made_in_one_place() -> None:
    naming = [file for file in FILES if ".partial" in (ROOT / file).read_text(encoding="utf-8")]
    assert naming == ["convrec/base/files.py"], "write with convrec.base.files: atomic_write, write_*"


@pytest.mark.parametrize("file", FILES)
def test_every_module_has_a_docstring(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree)


def test_contributing_names_files_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = re.findall(r"(?:convrec|recipes|reward|data_prep|conf|docs|tests|benchmarks)/[\w/-]+\.(?:py|md|yaml)", text)
    assert len(files) > 20
    # NAME stands for what is added
    assert [file for file in files if "NAME" not in file and not (ROOT / file).exists()] == []


def test_contributing_names_every_folder() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {Path(file).parent.name for file in FILES}
    assert not {name for name in folders if f"{name}/" not in tree}, "add a line to the tree in CONTRIBUTING.md"


def test_make_bench_runs_every_benchmark() -> None:
    command = ["make", "--dry-run", "bench", "SMOLLM2=model", "PEERS=peers"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    benchmarks = {file.name for file in (ROOT / "benchmarks").glob("bench_*.py")}
    assert set(re.findall(r"benchmarks/(bench_\w+\.py)", planned)) == benchmarks
