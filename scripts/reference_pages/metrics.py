"""metrics.md: every metric with its definition and its unit."""

from convrec.report.metric_table import EVALUATION_GROUPS, RUN_GROUPS, MetricGroup
from reference_pages.markdown import code, table


def metrics_page() -> str:
    """Return the page."""
    sections = "\n\n".join(map(_section, (*RUN_GROUPS, *EVALUATION_GROUPS)))
    return f"""
# Metrics
A bucket is a range of ranks: `all`, `1`, `2-5`, `6-10`, ..., `stop` (a stop token before the N-th item) or `overflow`
(items after the N-th). A group is the lists that are credited together: the rollouts of a prompt, or with ASK its lists
at one turn. [The method](../explanation/method.md) explains the symbols.

{sections}
"""


def _section(group: MetricGroup) -> str:
    rows = (
        (", ".join(map(code, metric.names)), metric.definition, metric.unit, code(metric.condition))
        for metric in group.metrics
    )
    return f"## {group.title}\n{group.place}\n\n{table(('metric', 'definition', 'unit', 'only with'), rows)}"
