"""Which tasks start when: what each needs to have ended well before it, and what there is room for."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Job = TypeVar("Job")


@dataclass(frozen=True)
class Task:
    """after: names of the tasks that must have succeeded. groups: (number of nodes, GPU slots on each of them).
    cpus: CPU slots, wherever they are."""

    name: str
    after: tuple[str, ...] = ()
    groups: tuple[tuple[int, int], ...] = ()
    cpus: int = 0


@dataclass(frozen=True)
class Node:
    gpus: int
    cpus: int


def has_room(nodes: Sequence[Node], running: Sequence[Task], task: Task) -> bool:
    """Whether the task fits beside those that run, wherever Ray has put these.

    Which node has which task is Ray's choice, and a training that does not find its slots free is refused. So it is
    reckoned with the worst: as many nodes as the running pieces, each on one node, can possibly fill too far.
    """
    if sum(one.cpus for one in (*running, task)) > sum(node.cpus for node in nodes):
        return False
    pieces = [gpus for one in running for number, gpus in one.groups for _ in range(number)]
    for number, gpus in sorted(task.groups, key=lambda group: -group[1]):
        large_enough = sum(node.gpus >= gpus for node in nodes)
        if large_enough - _filled(nodes, pieces, gpus) < number:
            return False
        pieces += [gpus] * number
    return True


def _filled(nodes: Sequence[Node], pieces: Sequence[int], gpus: int) -> int:
    """At most how many of the nodes with so many slots can have fewer than that left, with these pieces on them."""
    needed = sorted(node.gpus - gpus + 1 for node in nodes if node.gpus >= gpus)  # taken there, and it is filled
    largest = max(pieces, default=0)
    if gpus == 0 or largest == 0:
        return 0
    by_slots = _affordable(needed, sum(pieces))
    by_number = _affordable([-(-slots // largest) for slots in needed], sum(piece > 0 for piece in pieces))
    return min(by_slots, by_number)


def _affordable(prices: Sequence[int], budget: int) -> int:
    """How many of these, cheapest first, the budget pays for."""
    bought = 0
    for price in prices:
        budget -= price
        if budget < 0:
            break
        bought += 1
    return bought


class Schedule:
    """Tasks in order, and how far each is: "waiting", "running", "done", "failed" or "left out".

    Args:
        tasks: each after those that it needs.
        room: whether there is room for a task beside those that run.
        done: names of tasks that need not be started.
    """

    def __init__(
        self, tasks: Sequence[Task], room: Callable[[Sequence[Task], Task], bool], done: Sequence[str] = ()
    ) -> None:
        self.tasks = {task.name: task for task in tasks}
        self.room = room
        self.state = {name: "done" if name in done else "waiting" for name in self.tasks}

    def names(self, state: str) -> list[str]:
        return [name for name, its in self.state.items() if its == state]

    def next(self) -> Task | None:
        """The first task that can start now. A later one that fits goes ahead of an earlier one that does not."""
        running = [self.tasks[name] for name in self.names("running")]
        for name in self.names("waiting"):
            task = self.tasks[name]
            if all(self.state[other] == "done" for other in task.after) and self.room(running, task):
                return task
        return None

    def started(self, name: str) -> None:
        self.state[name] = "running"

    def ended(self, name: str, succeeded: bool) -> None:
        """After a failure, what waits for it is left out, and what waits for that."""
        self.state[name] = "done" if succeeded else "failed"
        for other, task in self.tasks.items():  # in order, so that one pass finds all
            if self.state[other] == "waiting" and any(self.state[one] in ("failed", "left out") for one in task.after):
                self.state[other] = "left out"


def run_all(
    schedule: Schedule,
    begin: Callable[[Task], Job],
    outcome: Callable[[str, Job], bool | None],
    jobs: Mapping[str, Job],
    seconds: float,
) -> None:
    """Begin every task when it can start, until all have ended.

    Args:
        begin: starts a task and returns at once.
        outcome: of a task's job: True when it has succeeded, False when it has failed, None while it runs.
        jobs: tasks of an earlier start that still run.
        seconds: between looks.
    """
    running = dict(jobs)
    for name in running:
        schedule.started(name)
    while running or schedule.next():
        while task := schedule.next():
            running[task.name] = begin(task)
            schedule.started(task.name)
        time.sleep(seconds)
        for name, job in list(running.items()):
            if (succeeded := outcome(name, job)) is not None:
                del running[name]
                schedule.ended(name, succeeded)
