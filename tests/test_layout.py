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
    "convrec/checkpoints.py",
    "convrec/dataset.py",
    "convrec/group_rollout.py",
    "convrec/reward_manager.py",
    "convrec/judge_dataset.py",
    "convrec/liveness.py",
    "convrec/micro_batches.py",
    "convrec/platform_cpu.py",
    "convrec/registration.py",
    "convrec/rollout.py",
    "convrec/rollout_queue.py",
    "convrec/sft_trainer.py",
    "convrec/tracking.py",
    "convrec/trainer.py",
    "convrec/trainer_base.py",
    "convrec/verl_plugin.py",
    "convrec/vllm_cpu.py",
    "convrec/vllm_server.py",
    "convrec/weight_files.py",
    "convrec/worker.py",
}
VLLM = {"convrec/generation_worker.py", "convrec/vllm_cpu.py", "convrec/vllm_server.py"}
LIGHT = ("ranks", "catalog", "matching", "rank_rewards", "metrics", "schema", "errors", "runs")
LIGHT += (
    "validation",
    "checkpoint_files",
    "guard",
    "saving",
    "judge_verdict",
    "judge_prompt",
    "judge_schema",
    "judge_metrics",
)
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


def test_the_readme_names_every_module() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [module for module in MODULES if Path(module).name != "__init__.py" and Path(module).name not in readme]
    assert not missing, "add a line to the tree in README.md"
