"""A small run of Rank-GRPO that is killed, stopped, starved of disk and moved in time until the minutes are over.

    python benchmarks/chaos.py --demo outputs/demo --minutes 30        (make chaos MINUTES=30)

The same run is trained twice from what `make demo` has left: with a fault in every start, each resumed by the same
command, until the minutes are over and it may finish; and undisturbed, for as many steps. At the end both have the same
metrics, and no process, shared memory or temporary folder is left.
Prints a table; OUT/chaos.json has it too. Exit status 1 where something of that does not hold.

Not among the victims: the guard, which removes what the others leave, and for SIGSTOP the process that was started and
its fork, which watches the others.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from convrec.runs.folder import latest_step, read_metrics

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ("kill", "stop", "SIGTERM", "SIGINT", "SIGUSR1", "disk full", "clock")
DISK_MIB = 256  # three checkpoints of the demo's model, its log and its metrics
END_SECONDS = 400.0  # that a disturbed start may take to end; a stopped one is waited for by the watchdog
SURVIVED_STEPS = 3  # so many steps after a fault the start has survived it, and gets the next
GOES_ON = "goes on"
ENDLESS, STEPS_TO_THE_END = 100_000, 5  # of the disturbed run: while there are faults, and in its last start
WATCHDOG_SECONDS = 30
CLOCK = Path(__file__).with_name("clock.c")
COMPARED = ("actor/policy_loss", "actor/grad_norm", "actor/kl", "rank_grpo/return@1", "rank_grpo/dcg", "val/ndcg")


@dataclass
class Row:
    """One start: what was done to it, and how it ended."""

    fault: str
    target: str
    after_step: int
    status: int | str | None  # None: it had to be killed; GOES_ON: it trains as before
    seconds: float  # from the fault to the end
    said: str
    left: list[str]


class Start:
    """One start of the run, and everything it has started."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.file = log.open("w+")
        # a background job of a script has Ctrl-C ignored, and would hand that on
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.file, stderr=self.file, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.seen: set[psutil.Process] = set()
        self.folders: set[str] = set()
        self.segments: set[str] = set()

    def look(self) -> list[psutil.Process]:
        """Its processes now; notes what must be gone at the end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
            self.seen |= set(tree)
            for process in tree:
                with contextlib.suppress(psutil.Error, OSError):
                    self.folders |= {process.environ().get("CONVREC_RUN_TMP", "")} - {""}
                    maps = Path(f"/proc/{process.pid}/maps").read_text()  # psutil's reads the sizes too, for long
                    self.segments |= set(re.findall(r"(/dev/shm/\S+)$", maps, re.MULTILINE))
            return tree
        return []

    def wait(self, seconds: float, survived: Callable[[], bool] = lambda: False) -> int | str | None:
        """Wait for the end of this start.

        Args:
            seconds: the longest wait; then the process is killed.
            survived: asked every second whether the start has survived its fault.

        Returns:
            The exit status; None if it did not end in time, GOES_ON if it has survived.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if survived():
                return GOES_ON
            self.look()
            time.sleep(1)
        if (status := self.process.poll()) is None:
            self.process.kill()
            self.process.wait()
        return status

    def left(self) -> list[str]:
        _, alive = psutil.wait_procs(self.seen, timeout=40)
        processes = [f"process {p.pid} {p.name()}" for p in alive if p.is_running()]
        return [*processes, *(path for path in self.folders | self.segments if os.path.exists(path))]

    def said(self) -> str:
        self.file.seek(0)
        lines = [line.split("\r")[-1].strip() for line in self.file.read().splitlines()]
        lines = [line for line in lines if line and "step/s" not in line and "s/step" not in line]
        return next((line for line in reversed(lines) if not line.startswith("full log")), "")


class Campaign:
    def __init__(self, demo: Path, out: Path, seed: int) -> None:
        self.out, self.random = out, random.Random(seed)
        files = {"TRAIN_FILE": "train", "VAL_FILE": "validation", "CATALOG_FILE": "catalog"}
        self.environment = os.environ | {name: str(demo / "data" / f"{file}.parquet") for name, file in files.items()}
        self.environment |= {"MODEL_PATH": str(demo / "sft"), "PYTHON": sys.executable, "TOTAL_STEPS": str(ENDLESS)}
        self.environment |= {"TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "MAX_PROMPT_LENGTH": "256", "LR": "1e-5"}
        self.environment |= {"MAX_RESPONSE_LENGTH": "64", "SAVE_FREQ": "1", "SAVE_KEEP": "2", "TEST_FREQ": "5"}
        self.environment |= {"TOTAL_EPOCHS": "1000"}
        self.command = ["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false"]
        self.command += ["data.val_max_samples=8", "convrec.deterministic=true"]
        self.command += [f"convrec.watchdog_seconds={WATCHDOG_SECONDS}"]
        self.clock = out.resolve() / "clock.so"
        self.faults = list(FAULTS)
        self.rows: list[Row] = []

    def start(self, run: Path, number: int, **more: str) -> Start:
        log = self.out / f"{run.name}-{number}.log"
        return Start(self.command, self.environment | {"SAVE_PATH": str(run)} | more, log)

    def undisturbed(self, steps: int) -> None:
        start = self.start(self.out / "undisturbed", 1, TOTAL_STEPS=str(steps))
        status = start.wait(3600)
        assert status == 0, f"the undisturbed run ended with {status}: {start.said()}"

    def can_change_the_clock(self) -> bool:
        if not (compiler := shutil.which("cc")):
            return False
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self.clock), str(CLOCK), "-ldl"]
        return not subprocess.run(command, check=False).returncode

    def disturbed(self, run: Path, deadline: float) -> int:
        """Start a run with faults until the deadline, then once more without one.

        Args:
            run: the run's folder.
            deadline: by time.monotonic().

        Returns:
            The steps that the last start is to reach.
        """
        faults: list[str] = []
        start: Start | None = None
        while time.monotonic() < deadline or start:
            if not faults:
                faults = self.random.sample(self.faults, len(self.faults))
            # a start that has survived a fault cannot have its clock changed any more
            fault = faults.pop() if start is None or faults[-1] != "clock" else "kill"
            fault = fault if time.monotonic() < deadline else "SIGUSR1"  # for one that has survived the last fault
            start = self.one_fault(run, fault, start)
            print(self.lines()[-1], flush=True)
        begun = latest_step(run)
        steps = begun + STEPS_TO_THE_END
        start = self.start(run, len(self.rows) + 1, TOTAL_STEPS=str(steps))
        status = start.wait(3600)
        self.rows.append(Row("none", "", begun, status, 0.0, start.said(), start.left()))
        return steps

    def one_fault(self, run: Path, fault: str, start: Start | None) -> Start | None:
        """Disturb a start of the run.

        Args:
            run: the run's folder.
            fault: one of the campaign's faults.
            start: one that has survived the last fault; None to start the run.

        Returns:
            The start if it survives this fault too, else None.
        """
        more = {}
        if fault == "clock":
            # behind, waits of gRPC until a time of day would end at once, and spin: the kernel's clock is another
            more = {"LD_PRELOAD": str(self.clock), "CHAOS_CLOCK": "60"}
        start = start or self.start(run, len(self.rows) + 1, **more)
        self.wait_for_the_moment(start, run)
        step, begin, target = latest_step(run), time.monotonic(), self.do(fault, start, run, more)
        status = start.wait(END_SECONDS, lambda: latest_step(run) - step >= SURVIVED_STEPS)
        (run.parent / "filler").unlink(missing_ok=True)
        left = [] if status == GOES_ON else start.left()
        self.rows.append(Row(fault, target, step, status, time.monotonic() - begin, start.said(), left))
        return start if status == GOES_ON else None

    def wait_for_the_moment(self, start: Start, run: Path) -> None:
        """Wait for the moment of a fault.

        One of four faults comes while the run starts; the others at any time of the steps after the first.

        Args:
            start: the start to disturb.
            run: the run's folder.
        """
        in_steps, begun = self.random.random() > 0.25, latest_step(run)
        seconds = self.random.uniform(0, 15) if in_steps else self.random.uniform(1, 40)
        deadline = time.monotonic() + END_SECONDS
        while in_steps and latest_step(run) <= begun and start.process.poll() is None and time.monotonic() < deadline:
            start.look()
            time.sleep(0.5)
        deadline = time.monotonic() + seconds
        while start.process.poll() is None and time.monotonic() < deadline:
            start.look()
            time.sleep(0.5)

    def do(self, fault: str, start: Start, run: Path, more: dict[str, str]) -> str:
        """Do a fault.

        Args:
            fault: one of the campaign's faults.
            start: the start to disturb.
            run: the run's folder.
            more: variables of this start; with CHAOS_CLOCK its clock jumps before the kill.

        Returns:
            What it was done to, in words.
        """
        if fault in ("kill", "stop", "clock"):
            tree = start.look()
            victims = [p for p in tree if not is_spared(p) and (fault != "stop" or p not in tree[:2])]
            if not victims:
                return "nothing there"
            victim = self.random.choice(victims)
            with contextlib.suppress(psutil.NoSuchProcess):
                name = get_name(victim)
                victim.send_signal(signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
                return f"{more['CHAOS_CLOCK']} s, then SIGKILL of {name}" if more else name
            return "it had ended"
        if fault == "disk full":
            with contextlib.suppress(OSError), (run.parent / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"0" * 2**20)
            return f"tmpfs of {DISK_MIB} MiB"
        with contextlib.suppress(ProcessLookupError):
            os.kill(start.process.pid, signal.Signals[fault])
        return "the run"

    def differences(self, run: Path) -> tuple[dict[str, float], list[int]]:
        """Compare a disturbed run with the undisturbed one.

        Args:
            run: the run's folder.

        Returns:
            The largest relative difference of each metric over the steps that both have logged, and the steps of which
            the disturbed run lacks a metric.
        """
        wanted, found = ({row["step"]: row for row in read_metrics(r)} for r in (self.out / "undisturbed", run))
        worst = {}
        for name in COMPARED:
            pairs = [(row[name], found[step][name]) for step, row in wanted.items() if name in found.get(step, {})]
            assert pairs, name
            worst[name] = max(abs(a - b) / max(abs(a), 1e-12) if a != b else 0.0 for a, b in pairs)
        lost = [step for step, row in wanted.items() if (set(COMPARED) & set(row)) - set(found.get(step, {}))]
        return worst, lost

    def lines(self) -> list[str]:
        head = [
            "| fault | of | after step | exit status | seconds to the end | last line | left over |",
            "|---" * 7 + "|",
        ]
        return head + [
            f"| {r.fault} | {r.target} | {r.after_step} | {r.status} | {r.seconds:.0f} | {r.said[:110]} | "
            f"{', '.join(r.left) or 'nothing'} |"
            for r in self.rows
        ]


def is_spared(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("runs/guard_process.py" in word or "resource_tracker" in word for word in process.cmdline())
    return True


def get_name(process: psutil.Process) -> str:
    words = process.cmdline() or [process.name()]
    named = [word for word in words if word.startswith(("ray::", "VLLM::", "recipes."))]
    return named[0] if named else " ".join(Path(word).name for word in words[:3] if not word.startswith("-"))[:40]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A tmpfs of DISK_MIB; where the kernel forbids that, the folder itself, without the fault."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", "convrec-chaos", str(folder)]
    mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("outputs/demo"), help="what `make demo` has left")
    parser.add_argument("--out", type=Path, default=Path("outputs/chaos"))
    parser.add_argument("--minutes", type=float, default=30, help="of faults; both runs come on top")
    parser.add_argument("--seed", type=int, default=0, help="of faults, victims and moments")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    campaign = Campaign(arguments.demo, arguments.out, arguments.seed)
    has_clock = campaign.can_change_the_clock()
    with small_disk(arguments.out / "disk") as can_be_full:
        impossible = [*([] if can_be_full else ["disk full"]), *([] if has_clock else ["clock"])]
        campaign.faults = [fault for fault in FAULTS if fault not in impossible]
        run = arguments.out / "disk" / "disturbed"
        steps = campaign.disturbed(run, time.monotonic() + 60 * arguments.minutes)
        campaign.undisturbed(steps)
        (differences, lost), step = campaign.differences(run), latest_step(run)
        shutil.copytree(run / "metrics", arguments.out / "metrics")
    print("\n".join(campaign.lines()))
    print(f"step {step} of {steps}; largest relative differences: {differences}; metrics lost of: {lost}")
    rows = [asdict(row) for row in campaign.rows]
    (arguments.out / "chaos.json").write_text(
        json.dumps({"rows": rows, "step": step, "differences": differences, "lost": lost})
    )
    is_well = step == steps and not lost and max(differences.values()) < 1e-5
    return 0 if is_well and not any(row.left or row.status is None for row in campaign.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
