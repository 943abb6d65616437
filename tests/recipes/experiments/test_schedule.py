"""What starts when, with tasks that are real processes; and that there is room wherever Ray puts things."""

import itertools
import subprocess
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.experiments.schedule import Node, Schedule, Task, has_room, run_all

ALWAYS = lambda running, task: True  # noqa: E731


def chain() -> list[Task]:
    return [Task("sft"), Task("a", ("sft",)), Task("b", ("sft",)), Task("c", ("a",)), Task("other")]


class Processes:
    """Tasks as shell commands that note when they begin and end; those in `failing` end with status 1."""

    def __init__(self, folder: Path, failing: tuple[str, ...] = ()) -> None:
        self.file, self.failing = folder / "events", failing
        self.file.touch()

    def begin(self, task: Task) -> subprocess.Popen:
        status = int(task.name in self.failing)
        note = f"echo begin {task.name} >> {self.file}; sleep 0.05; echo end {task.name} >> {self.file}; exit {status}"
        return subprocess.Popen(["sh", "-c", note])

    @staticmethod
    def outcome(name: str, job: subprocess.Popen) -> bool | None:
        status = job.poll()
        return None if status is None else status == 0

    def run(self, schedule: Schedule, jobs: dict[str, subprocess.Popen] | None = None) -> list[str]:
        run_all(schedule, self.begin, self.outcome, jobs or {}, 0.01)
        return self.file.read_text().splitlines()


def most_at_once(events: list[str]) -> int:
    counts = itertools.accumulate(1 if event.startswith("begin") else -1 for event in events)
    return max(counts)


def test_a_task_begins_when_what_it_needs_has_ended(tmp_path: Path) -> None:
    schedule = Schedule(chain(), ALWAYS)
    events = Processes(tmp_path).run(schedule)
    assert len(events) == 10
    for task in chain():
        for before in task.after:
            assert events.index(f"end {before}") < events.index(f"begin {task.name}")
    assert most_at_once(events) >= 2  # `other` beside `sft`, `b` beside `a`
    assert set(schedule.state.values()) == {"done"}


def test_a_failure_stops_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    schedule = Schedule(chain(), ALWAYS)
    events = Processes(tmp_path, failing=("a",)).run(schedule)
    assert schedule.state == {"sft": "done", "a": "failed", "b": "done", "c": "left out", "other": "done"}
    assert "begin c" not in events
    schedule = Schedule(chain(), ALWAYS)
    assert "end other" in Processes(tmp_path, failing=("sft",)).run(schedule)
    assert schedule.names("left out") == ["a", "b", "c"]


def test_not_more_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    tasks = [Task(str(number)) for number in range(6)]
    schedule = Schedule(tasks, lambda running, task: len(running) < 2)
    events = Processes(tmp_path).run(schedule)
    assert most_at_once(events) == 2
    assert sorted([event for event in events if "begin" in event][:2]) == ["begin 0", "begin 1"]  # at once


def test_what_is_done_is_not_begun_and_what_runs_is_waited_for(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    schedule = Schedule(chain(), ALWAYS, done=["sft"])
    earlier = processes.begin(Task("a"))
    while "begin a" not in processes.file.read_text():
        time.sleep(0.01)
    events = processes.run(schedule, {"a": earlier})
    assert not [event for event in events if event.endswith("sft")]
    assert events.count("begin a") == 1
    assert events.index("end a") < events.index("begin c")


def test_a_small_task_goes_ahead_of_one_that_does_not_fit_yet() -> None:
    nodes = [Node(8, 64)]
    large, small = Task("large", (), ((1, 8),)), Task("small", (), ((1, 2),))
    schedule = Schedule(
        [Task("first", (), ((1, 4),)), large, small], lambda running, task: has_room(nodes, running, task)
    )
    begun = []
    while task := schedule.next():
        begun.append(task.name)
        schedule.started(task.name)
    assert begun == ["first", "small"]
    schedule.ended("first", True)
    assert schedule.next() is None
    schedule.ended("small", True)
    assert schedule.next() == large


def test_room_by_cases() -> None:
    """4 + 4 slots. A task of 2 may be on either node: one of 4 must count on it, a second one of 2 need not."""
    nodes = [Node(4, 10), Node(4, 10)]
    two, four, both = Task("two", (), ((1, 2),)), Task("four", (), ((1, 4),)), Task("both", (), ((2, 4),))
    assert has_room(nodes, [], both)
    assert not has_room(nodes, [], Task("three nodes", (), ((3, 1),)))
    assert has_room(nodes, [four], four)
    assert not has_room(nodes, [two], both)
    assert has_room(nodes, [two], four)
    assert not has_room(nodes, [two, two], four)  # Ray may have put one on each
    assert has_room(nodes, [two, two, two], two)
    assert not has_room(nodes, [two] * 4, two)
    assert has_room(nodes, [Task("cpus", cpus=20)], Task("slots", (), ((1, 4),)))
    assert not has_room(nodes, [Task("cpus", cpus=20)], Task("one more", cpus=1))
    assert has_room([Node(0, 1)], [Task("a")], Task("b"))  # neither takes slots


def places(nodes: list[int], pieces: list[int]) -> list[list[int]]:
    """Every way to put the pieces on the nodes: the slots that are left, node by node."""
    ways = [nodes]
    for piece in pieces:
        ways = [
            [left - piece * (place == node) for place, left in enumerate(way)]
            for way in ways
            for node in range(len(nodes))
            if way[node] >= piece
        ]
    return ways


slots = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(nodes=slots, pieces=st.lists(st.integers(1, 4), max_size=4), number=st.integers(1, 2), gpus=st.integers(1, 4))
def test_a_task_that_has_room_finds_it_wherever_the_others_are(
    nodes: list[int], pieces: list[int], number: int, gpus: int
) -> None:
    running = [Task(str(place), (), ((1, piece),)) for place, piece in enumerate(pieces)]
    task = Task("task", (), ((number, gpus),))
    if has_room([Node(count, 0) for count in nodes], running, task):
        for left in places(nodes, pieces):
            assert sum(free >= gpus for free in left) >= number, (nodes, pieces, left)
    elif not pieces:
        assert sum(count >= gpus for count in nodes) < number  # alone it is refused for a reason
