"""Imports point one way, and light modules stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("convrec", "reward", "data_prep", "recipes")
MAY_IMPORT = {"convrec": set(), "reward": {"convrec"}, "data_prep": {"convrec"}, "recipes": set(PACKAGES)}
VERL_AND_RAY = {
    "convrec/checkpoints/models.py",
    "convrec/training/dataset.py",
    "convrec/rollout/groups.py",
    "convrec/rollout/reward_manager.py",
    "convrec/training/judge_dataset.py",
    "convrec/training/liveness.py",
    "convrec/training/without_flash_attention.py",
    "convrec/cpu/platform.py",
    "convrec/training/registration.py",
    "convrec/rollout/agent_loop.py",
    "convrec/rollout/queue.py",
    "convrec/training/sft_trainer.py",
    "convrec/training/tracking.py",
    "convrec/training/rank_trainer.py",
    "convrec/training/trainer_base.py",
    "convrec/verl_plugin.py",
    "convrec/cpu/server.py",
    "convrec/rollout/server.py",
    "convrec/cpu/weight_files.py",
    "convrec/training/worker.py",
}
VLLM = {"convrec/generation/child.py", "convrec/cpu/server.py", "convrec/rollout/server.py"}
LIGHT = (
    "errors",
    "data.schema",
    "data.validation",
    "runs.folder",
    "runs.guard",
    "checkpoints.files",
    "checkpoints.saving",
)
LIGHT += ("lists.ranks", "lists.catalog", "lists.matching", "lists.rank_rewards", "lists.metrics")
LIGHT += ("judges.verdict", "judges.prompt", "judges.schema", "judges.metrics")
HEAVY = ("torch", "pandas", "verl", "ray", "vllm", "transformers", "datasets", "sklearn", "matplotlib")

MODULES = sorted(path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def imported_packages(module: str) -> set[str]:
    """Top-level packages a module imports anywhere, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    package = module.split("/")[0]
    ours = imported_packages(module) & set(PACKAGES)
    assert ours <= MAY_IMPORT[package] | {package}


@pytest.mark.parametrize("module", MODULES)
def test_verl_ray_and_vllm_stay_at_their_seams(module: str) -> None:
    imported = imported_packages(module)
    if not module.startswith("recipes/"):
        assert module in VERL_AND_RAY or not imported & {"verl", "ray", "transfer_queue"}
    assert module in VLLM or "vllm" not in imported


def test_light_modules_import_nothing_heavy() -> None:
    """All of them in one process; the rank grammar's token half is what needs torch."""
    code = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module("convrec." + name)
    heavy = [module for module in {HEAVY!r} if module in sys.modules]
    if heavy:
        sys.exit(f"convrec.{{name}} imports {{', '.join(heavy)}}")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_of_the_library_has_a_docstring() -> None:
    for module in MODULES:
        tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
        assert not tree.body or ast.get_docstring(tree), module


def test_the_readme_names_every_folder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    folders = {Path(module).parent.name for module in MODULES}
    assert not {name for name in folders if f"{name}/" not in readme}, "add a line to the tree in README.md"
