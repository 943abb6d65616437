"""Plans as text, and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from recipes.planning.constants import Constant
from recipes.planning.figures import GIB, KINDS, Figure, shown, total
from recipes.planning.plan import Plan
from recipes.planning.scale import Row


def plan_lines(plan: Plan, lacks: Sequence[str], remedies: Sequence[str]) -> list[str]:
    """One plan: a section of figures after the other, what does not fit, then the constants that were used."""
    lines = section("work", plan.work)
    lines += section("seconds of a step", [*plan.phases, plan.step], shares_of=plan.step.value)
    lines += section("memory of a GPU in training", [*plan.training, total("in all", plan.training)])
    if plan.sampling:
        lines += section("memory of a GPU in sampling", [*plan.sampling, total("in all", plan.sampling)])
    lines += section("storage", plan.storage)
    lines += section("a GPU receives in a step", plan.network)
    lines += ["", "fits" if not lacks else f"does not fit: {'; '.join(lacks)}"]
    if lacks:
        lines += [f"  try: {remedy}" for remedy in remedies] or [
            "  no change that is known here is enough: other GPUs, or GPU_MEMORY_UTILIZATION"
        ]
    for kind in KINDS:
        used = sorted((c for c in constants_of(plan) if c.kind == kind), key=lambda c: c.name)
        if used:
            lines += ["", kind, *(f"  {c.name}: {shown(c.value, c.unit)} ({c.source})" for c in used)]
    return lines


def section(title: str, figures: Iterable[Figure], shares_of: float = 0.0) -> list[str]:
    """shares_of: what each value is shown as a share of, too."""
    lines = ["", title]
    for entry in figures:
        share = f"{entry.value / shares_of:6.1%}" if shares_of else ""
        lines.append(f"  {entry.name:38} {shown(entry.value, entry.unit):>14} {share:>7}  {entry.rests_on}")
    return lines


def constants_of(plan: Plan) -> set[Constant]:
    return {constant for figures in plan.sections.values() for entry in figures for constant in entry.constants}


def plan_json(plan: Plan, lacks: Sequence[str], remedies: Sequence[str]) -> dict[str, Any]:
    return {
        "parameters": plan.run.size.parameters,
        **{name: [_figure_json(entry) for entry in figures] for name, figures in plan.sections.items()},
        "step": _figure_json(plan.step),
        "fits": not lacks,
        "lacks": list(lacks),
        "remedies": list(remedies),
        "constants": [asdict(constant) for constant in sorted(constants_of(plan), key=lambda c: (c.kind, c.name))],
    }


def _figure_json(entry: Figure) -> dict[str, Any]:
    names = sorted(constant.name for constant in entry.constants)
    return {"name": entry.name, "value": entry.value, "unit": entry.unit, "constants": names}


def scale_lines(rows: Iterable[Row]) -> list[str]:
    """A row a size and number of nodes: hours, seconds of a step and the share of each phase; fitting runs alone."""
    rows = list(rows)
    phases = next((row.plan.phases for row in rows if row.plan), [])
    heads = [f"  {phase.name}" for phase in phases]
    lines = [f"{'model':6}{'nodes':>6}{'TP':>4}{'hours':>9}{'step s':>9}{'GiB':>7}" + "".join(heads)]
    for row in rows:
        line = f"{row.model:6}{row.nodes:6}{row.tensor_parallel or '':>4}"
        if row.plan is None:
            lines.append(f"{line}  {'; '.join(row.lacks)}")
            continue
        step, most = row.plan.step.value, most_memory(row.plan)
        line += f"{row.plan.hours.value:9,.2f}{step:9.2f}{most / GIB:7.1f}"
        shares = zip(heads, row.plan.phases, strict=True)
        lines.append(line + "".join(f"{phase.value / step:{len(head)}.0%}" for head, phase in shares))
    return lines


def most_memory(plan: Plan) -> float:
    """Bytes of a GPU, while it trains or while it samples."""
    return max(sum(part.value for part in parts) for parts in (plan.training, plan.sampling))


def scale_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [
        {
            "model": row.model,
            "nodes": row.nodes,
            "tensor_parallel": row.tensor_parallel,
            **(plan_json(row.plan, [], []) if row.plan else {"fits": False, "lacks": row.lacks}),
        }
        for row in rows
    ]
