"""GET /metrics: what the front counts itself, and vLLM's figures of every replica, in Prometheus' text form."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests and latency by path. One object a process of the front."""

    def __init__(self, paths: Iterable[str]) -> None:
        """paths: the service's own; others count together, or a stranger could make a label for each."""
        self.paths = frozenset(paths)
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "convrec_requests", "HTTP requests answered", ["path", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "convrec_request_seconds",
            "seconds to the end of the answer",
            ["path"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self.running = Gauge("convrec_requests_running", "requests being answered", registry=self.registry)

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        path = path if path in self.paths else "other"
        method = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        self.requests.labels(path, method, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self, expositions: Mapping[str, str]) -> bytes:
        """expositions: replica -> its exposition, of which the families of vLLM are taken, each once; their samples get
        the label `replica`."""
        families: dict[str, Metric] = {}
        for replica, text in expositions.items():
            for family in text_string_to_metric_families(text):
                if not family.name.startswith("vllm:"):
                    continue
                into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    if not sample.name.endswith("_created"):
                        into.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
        return generate_latest(self.registry) + generate_latest(SimpleNamespace(collect=families.values))
