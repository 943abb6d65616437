"""The hour on a GPU: its order and limits, what is done only once, and its page. The parts here are small scripts; all
of the real ones are rehearsed by tests/e2e/test_gpu_hour.py."""

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks import gpu_hour
from benchmarks.gpu_hour import Command, Part, Results, make_parts, run_parts
from convrec.base.files import read_json
from convrec.runs.folder import LATEST
from recipes.selftest.phases import PHASES
from tests.user_errors import refuses

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, os, subprocess, sys, time
what, *others = sys.argv[1:]
print("begun", what, file=sys.stderr)
with open(os.environ["BEGUN"], "a") as begun:
    begun.write(what + "\\n")
if what == "hangs":
    deaf = "import signal, time; signal.signal(15, lambda *_: 0); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", deaf, os.environ["BEGUN"]])
    with open("pid.new", "w") as file:
        file.write(str(child.pid))
    os.replace("pid.new", os.environ["BEGUN"] + ".pid")
    time.sleep(600)
if os.path.exists(what + ".broken"):
    sys.exit("broken: " + what)
print(others[0] if others else json.dumps({"ms": 1.5}))
"""


class Hour:
    """Parts whose commands note that they have begun."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.begun = folder, folder / "out", folder / "begun.txt"
        self.script = folder / "part.py"
        self.script.write_text(SCRIPT)

    def part(self, name: str, *printed: str, seconds: int = 60, needs: tuple[str, ...] = ()) -> Part:
        words = " ".join([str(self.script), name, *printed])
        file = str(self.out / "results" / f"{name}.figures.json")
        command = Command(name, words, {"BEGUN": str(self.begun)}, file, prints=True)
        return Part(name, f"tries {name}", seconds, (command,), needs)

    def run(self, *parts: Part, minutes: float = 10, names: Sequence[str] = ()) -> Results:
        return run_parts(parts, self.out, 0, minutes, names)

    def names_begun(self) -> list[str]:
        names = self.begun.read_text().split() if self.begun.exists() else []
        self.begun.unlink(missing_ok=True)
        return names


@pytest.fixture
def hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hour:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_hour, "END_SECONDS", 2)
    return Hour(tmp_path)


def words_of(value: Any) -> str:
    return shlex.quote(json.dumps(value))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_failed_part_stops_no_other_and_is_retried_last(hour: Hour) -> None:
    (hour.folder / "a.broken").touch()
    a, b, c = (hour.part(name) for name in "abc")
    results = hour.run(a, b)
    assert hour.names_begun() == ["a", "b"]
    assert [results[name]["status"] for name in "ab"] == ["fail", "pass"]
    assert results["a"]["why"] == "a: exit status 1"
    assert results["a"]["log"] == ["begun a", "broken: a"]
    assert read_json(hour.out / "results" / "b.json")["figures"] == {"b": {"ms": 1.5}}
    (hour.folder / "a.broken").unlink()
    results = hour.run(a, b, c)
    assert hour.names_begun() == ["c", "a"]  # b is done
    assert [results[name]["status"] for name in "abc"] == ["pass"] * 3
    assert hour.run(a, b, c) == results
    assert hour.names_begun() == []


def test_unreadable_figures_fail_the_part_but_not_the_hour(hour: Hour) -> None:
    results = hour.run(hour.part("a", "INFO vLLM says something"), hour.part("b"))
    assert (results["a"]["status"], results["b"]["status"]) == ("fail", "pass")
    assert "a.figures.json: " in results["a"]["why"]


def test_a_part_that_is_asked_for_otherwise_is_done_again(hour: Hour) -> None:
    hour.run(hour.part("a"))
    hour.run(hour.part("a", words_of({"ms": 2})))
    assert hour.names_begun() == ["a", "a"]
    assert read_json(hour.out / "results" / "a.json")["figures"] == {"a": {"ms": 2}}
    run_parts([hour.part("a", words_of({"ms": 2}))], hour.out, 1, 10)  # a rehearsal is no hour
    assert hour.names_begun() == ["a"]


def test_parts_that_do_not_fit_are_skipped_for_smaller_ones(hour: Hour) -> None:
    results = hour.run(hour.part("large", seconds=400), hour.part("small", seconds=30), minutes=5)
    assert hour.names_begun() == ["small"]
    assert results["large"] == {}
    hour.run(hour.part("large", seconds=400), hour.part("small", seconds=30), minutes=9)
    assert hour.names_begun() == ["large"]


def test_a_part_waits_for_those_that_it_needs(hour: Hour) -> None:
    (hour.folder / "a.broken").touch()
    parts = hour.part("a"), hour.part("b", needs=("a",)), hour.part("c")
    assert hour.run(*parts)["b"] == {}
    assert hour.names_begun() == ["a", "c"]
    (hour.folder / "a.broken").unlink()
    hour.run(*parts)
    assert hour.names_begun() == ["a"]  # the last to be tried again
    assert hour.run(*parts)["b"]["status"] == "pass"


def test_only_chosen_parts_run_in_plan_order_and_page_lists_all(hour: Hour) -> None:
    parts = hour.part("a"), hour.part("b"), hour.part("c", needs=("a",))
    results = hour.run(*parts, names=("c", "a"))
    assert hour.names_begun() == ["a", "c"]
    assert results["b"] == {}
    assert "tries b" in (hour.out / "results" / "report.html").read_text()
    hour.run(*parts, names=("c",))  # what it needs is done
    assert hour.names_begun() == []


def test_unrunnable_chosen_part_is_refused_before_any_starts(hour: Hour) -> None:
    parts = hour.part("free"), hour.part("resume", needs=("free",))
    with refuses("gpu-hour.unknown-part", "--parts fre", "free?"):
        hour.run(*parts, names=("free", "fre"))
    with refuses("gpu-hour.missing-part", "--parts resume", "free"):
        hour.run(*parts, names=("resume",))
    assert hour.names_begun() == []


def test_nine_minutes_of_an_h200_are_enough_for_free_and_half_b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is set: `free` takes 180 s, as ten steps did (notes/gpu.md), and `half_b` its whole limit."""
    now = 1000.0
    seconds = {"free": 180.0}

    def pretend(part: Part, log: Path) -> dict[str, Any]:
        nonlocal now
        took = seconds.get(part.name, part.seconds)
        now += took
        return {"status": "pass", "why": "", "seconds": took, "figures": {}, "log": []}

    monkeypatch.setattr(gpu_hour, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(gpu_hour, "run_part", pretend)
    results = run_parts(make_parts(tmp_path / "out", tmp_path, 1, "NVIDIA H200"), tmp_path / "out", 1, minutes=9)
    assert [name for name, one in results.items() if one] == ["free", "half_b"]
    assert now <= 1000 + 9 * 60


def test_a_part_has_a_limit_that_ends_all_of_it(hour: Hour) -> None:
    begin = time.monotonic()
    results = hour.run(hour.part("hangs", seconds=5), hour.part("next"))
    assert time.monotonic() - begin < 30
    assert results["hangs"]["why"] == "hangs: no end within the part's limit"
    assert results["next"]["status"] == "pass"
    deadline = time.monotonic() + 60  # what is killed ends a moment later
    while [one for one in psutil.process_iter(["cmdline"]) if str(hour.begun) in (one.info["cmdline"] or ())]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_killed_it_takes_its_part_along_and_begins_it_again(hour: Hour) -> None:
    words = f"{hour.script} hangs"
    code = f"""
from pathlib import Path
from benchmarks.gpu_hour import *
run_parts([Part("hangs", "", 60, (Command("hangs", {words!r}, {{"BEGUN": {str(hour.begun)!r}}}),))], Path("out"), 0, 10)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 600  # it imports torch and verl
        while not Path(f"{hour.begun}.pid").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (part,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
    while not is_gone(part.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    psutil.Process(int(Path(f"{hour.begun}.pid").read_text())).kill()  # in a run a guard does that
    assert not (hour.out / "results" / "hangs.json").exists()


def parse_rows(page: str) -> dict[str, list[str]]:
    """Head of a row -> its cells, as text."""
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in page.replace("<wbr>", "").split("<tr>")]
    return {row[0]: [html.unescape(cell).strip() for cell in row[1:]] for row in rows if row}


def test_page_shows_figures_of_every_part_and_steps_next_to_plan(hour: Hour) -> None:
    (hour.folder / "worse.broken").touch()
    outcome = {"phase": "step", "status": "pass", "reason": "", "seconds": 9.5, "log": [], "what": "the recipe"}
    outcome["figures"] = {"timing_s/step": 4.25, "actor/rollout_diff_mean": 2.5e-7}
    seconds = {"rollout": [1, 2], "log-probs": [0.5, 1], "update": [1, 3], "weight sync": [1, 1], "a step": [3, 8.5]}
    (step,) = hour.part("step", words_of({"phases": [outcome]})).commands
    (plan,) = hour.part("plan", words_of({"seconds of a step": seconds})).commands
    benchmark = hour.part("loss", words_of({"ours": {"ms": 12.5, "quartiles": [11.5, 13.5]}, "times floor": 1.75}))
    check = hour.part("check", words_of({"ok": True, "phases": [outcome]}))
    half_b, later = Part("half_b", "a <step>", 60, (plan, step)), hour.part("later", seconds=9999)
    hour.run(half_b, benchmark, check, hour.part("worse"), later)
    page = (hour.out / "results" / "report.html").read_text()
    assert "rehearsed without one" in page
    assert "scaled down" in page
    rows = parse_rows(page)
    assert rows["half_b"][:2] == ["a <step>", "pass"]
    assert rows["worse"][1] == "fail"
    assert rows["worse"][3:] == ["60", "worse: exit status 1"]
    assert rows["later"] == ["tries later", "not begun", "", "9999", ""]
    assert rows["timing_s/step"] == ["3 to 8.5", "4.25"]
    assert rows["actor/rollout_diff_mean"] == ["", "2.5e-07"]
    assert rows["ours, quartiles"] == ["11.5 to 13.5"]
    assert rows["times floor"] == ["1.75"]
    assert rows["step"][0].split() == [
        "step",
        "pass",
        "9.5",
        "timing_s/step",
        "4.25,",
        "actor/rollout_diff_mean",
        "2.5e-07",
    ]


@pytest.mark.parametrize("gpus", [0, 1])
def test_real_parts_fit_nine_minutes_each_and_cover_every_phase(gpus: int, tmp_path: Path) -> None:
    parts = make_parts(tmp_path / "o ut", tmp_path, gpus, "NVIDIA H200" if gpus else "")
    assert all(part.seconds <= 540 for part in parts)
    limits = {part.name: part.seconds for part in parts}
    trainings = ("free", "constrained", "llama", "resume", "evaluation", "evaluation_constrained")
    checks = [name for name in limits if name.startswith("check_")]
    assert {limits[name] for name in (*trainings, *checks)} == {300}
    assert limits["half_b"] == 330
    assert all({*part.needs} <= {before.name for before in parts[:place]} for place, part in enumerate(parts))
    assert len({part.name for part in parts}) == len(parts)
    commands = [shlex.split(command.words) for part in parts for command in part.commands]
    tried = [phase for words in commands if words[0] == "gpu-check" for phase in words[words.index("--only") + 1 :]]
    assert sorted(tried) == sorted(phase.name for phase in PHASES)
    assert all((ROOT / words[0]).exists() for words in commands if words[0].startswith("benchmarks"))
    (plan,) = (words for words in commands if words[0] == "plan")
    assert plan[plan.index("--gpu") + 1] == ("H200" if gpus else "H100")


@pytest.mark.long
def test_the_command_says_what_is_missing_and_how_to_go_on(tmp_path: Path) -> None:
    def run_script(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "benchmarks/gpu_hour.py", "--demo", str(tmp_path), "--out", str(tmp_path / "out")]
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        return done.returncode, done.stdout + done.stderr

    status, text = run_script()
    assert status == 2
    assert f"--demo {tmp_path}: no data/train.parquet" in text
    assert text.endswith("[gpu-hour.incomplete-demo]\n")
    for file in ("data/train.parquet", "data/test.parquet", "model/config.json", f"sft/{LATEST}"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    status, text = run_script("--minutes", "0.5")
    assert status == 0
    assert "0 of 16 parts failed, 16 are left" in text
    assert "may take longer than --minutes 0.5: 120 s and more" in text
