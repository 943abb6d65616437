"""GET /metrics in Prometheus' text format: counts of the front, and each replica's vLLM metrics and data ages."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from convrec.inference.served_catalog.journal import FILE as JOURNAL
from convrec.retrieval.folder import NOTES as RETRIEVAL
from recipes.serving.replicas import Model
from recipes.serving.schema import ModelSettings

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REPLICA_PREFIXES = ("vllm:", "convrec_")  # prefixes of the metric families that are taken from replicas


class Metrics:
    """Requests and latency by path. Each process of the front has one object."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Create the counters.

        Args:
            paths: the service's own; others share a label, since anybody could invent paths.
        """
        self.paths = frozenset(paths)
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "convrec_requests", "HTTP requests answered", ["path", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "convrec_request_seconds",
            "seconds until the end of the answer",
            ["path"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self.lists = Counter(
            "convrec_lists",
            "lists served: by the model, by the fallback, empty ones, and questions instead of lists",
            ["model", "kind"],
            registry=self.registry,
        )
        self.feedback = Counter("convrec_feedback_events", "feedback events stored", ["event"], registry=self.registry)
        self.feedback_lost = Counter(
            "convrec_feedback_lost_lines", "lists and feedback events that could not be written", registry=self.registry
        )
        self.running = Gauge("convrec_requests_running", "requests being answered", registry=self.registry)
        self.restarts = Gauge(
            "convrec_model_restarts", "how often a process of the model has ended", ["model"], registry=self.registry
        )
        self.up = Gauge(
            "convrec_model_processes_up", "processes of the model that answer", ["model"], registry=self.registry
        )

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request and its seconds.

        Args:
            path: of the request; one that is not a route counts as "other".
            method: of HTTP; an unknown one counts as "other".
            status: of the answer.
            seconds: until the answer, or the last event of a stream, was sent.
        """
        path = path if path in self.paths else "other"
        method = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        self.requests.labels(path, method, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def update_model(self, name: str, model: Model) -> None:
        """Record the current state of a model's processes."""
        self.restarts.labels(name).set(model.restarts)
        self.up.labels(name).set(sum(backend.is_up for backend in model.backends))

    def count_list(self, model: str, is_fallback: bool, items: int, is_question: bool) -> None:
        """Count a list once, by its kind; an empty list of the fallback counts as empty.

        Args:
            model: name of the model.
            is_fallback: whether the fallback made it.
            items: the number of its items.
            is_question: whether it is a question instead.
        """
        kind = "question" if is_question else "empty" if not items else "fallback" if is_fallback else "model"
        self.lists.labels(model, kind).inc()

    def render(self, expositions: Mapping[str, str]) -> bytes:
        """Render all metrics.

        Args:
            expositions: replica -> its metrics. Families with REPLICA_PREFIXES are merged; their samples get the label
                `replica`.
        """
        families: dict[str, Metric] = {}
        for replica, text in expositions.items():
            for family in text_string_to_metric_families(text):
                if not family.name.startswith(REPLICA_PREFIXES):
                    continue
                into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    if not sample.name.endswith("_created"):
                        into.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
        return generate_latest(self.registry) + generate_latest(SimpleNamespace(collect=families.values))


class ServedAges:
    """Times of the data that a process serves; a replaced file counts once it is loaded."""

    def __init__(self, settings: ModelSettings) -> None:
        """Create it before the files are read."""
        self._model = settings.name
        self._catalog_time = _modification_time(settings.catalog)
        self._journal = Path(settings.state) / JOURNAL if settings.state else None  # changes are served as they come
        self._registry = CollectorRegistry()
        self._changed = Gauge(
            "convrec_catalog_timestamp_seconds",
            "last change of the served catalog, in seconds since 1970",
            ["model"],
            registry=self._registry,
        )
        fitted = Gauge(
            "convrec_retrieval_timestamp_seconds",
            "fit of the served retrieval, in seconds since 1970",
            ["model"],
            registry=self._registry,
        )
        if settings.retrieval:
            fitted.labels(self._model).set(_modification_time(Path(settings.retrieval) / RETRIEVAL))

    def render(self) -> str:
        """Render the metrics in Prometheus' text format."""
        if self._catalog_time:
            self._changed.labels(self._model).set(max(self._catalog_time, _modification_time(self._journal)))
        return generate_latest(self._registry).decode()


def _modification_time(file: str | Path | None) -> float:
    """Return a file's time in seconds since 1970; 0 if there is no file."""
    path = Path(file) if file else None
    return path.stat().st_mtime if path and path.exists() else 0.0
