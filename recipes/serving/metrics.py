"""GET /metrics in Prometheus' text form: what the front counts itself, and of every replica vLLM's figures and the age
of what it serves."""

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
OF_REPLICAS = ("vllm:", "convrec_")  # how the families begin that are taken of replicas


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
        self.lists = Counter(
            "convrec_lists",
            "lists given: the model's, the fallback's, without any item, or a question in place of one",
            ["model", "kind"],
            registry=self.registry,
        )
        self.feedback = Counter("convrec_feedback_events", "events kept", ["event"], registry=self.registry)
        self.feedback_lost = Counter(
            "convrec_feedback_lost_lines", "lists and events that could not be written", registry=self.registry
        )
        self.running = Gauge("convrec_requests_running", "requests being answered", registry=self.registry)
        self.restarts = Gauge(
            "convrec_model_restarts", "times that a process of the model ended", ["model"], registry=self.registry
        )
        self.up = Gauge("convrec_model_processes_up", "processes that answer", ["model"], registry=self.registry)

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        path = path if path in self.paths else "other"
        method = method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        self.requests.labels(path, method, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def look_at(self, name: str, model: Model) -> None:
        """Note how a model is now."""
        self.restarts.labels(name).set(model.restarts)
        self.up.labels(name).set(sum(backend.is_up for backend in model.backends))

    def count_list(self, model: str, is_fallback: bool, items: int, is_question: bool) -> None:
        """Each list counts once: a fallback's that is empty is empty."""
        kind = "question" if is_question else "empty" if not items else "fallback" if is_fallback else "model"
        self.lists.labels(model, kind).inc()

    def text(self, expositions: Mapping[str, str]) -> bytes:
        """expositions: replica -> its exposition, of which the families of vLLM and of this package are taken, each
        once; their samples get the label `replica`."""
        families: dict[str, Metric] = {}
        for replica, text in expositions.items():
            for family in text_string_to_metric_families(text):
                if not family.name.startswith(OF_REPLICAS):
                    continue
                into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    if not sample.name.endswith("_created"):
                        into.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
        return generate_latest(self.registry) + generate_latest(SimpleNamespace(collect=families.values))


class ServedAges:
    """When what a process serves was made: a file that has replaced the catalog counts once it is served."""

    def __init__(self, settings: ModelSettings) -> None:
        """Make it before the files are read."""
        self._model = settings.name
        self._catalog_time = _modification_time(settings.catalog)
        self._journal = Path(settings.state) / JOURNAL if settings.state else None  # changes are taken as they come
        self._registry = CollectorRegistry()
        self._changed = Gauge(
            "convrec_catalog_timestamp_seconds",
            "when the catalog that is served changed last, in seconds since 1970",
            ["model"],
            registry=self._registry,
        )
        fitted = Gauge(
            "convrec_retrieval_timestamp_seconds",
            "when the retrieval that is served was fitted, in seconds since 1970",
            ["model"],
            registry=self._registry,
        )
        if settings.retrieval:
            fitted.labels(self._model).set(_modification_time(Path(settings.retrieval) / RETRIEVAL))

    def text(self) -> str:
        """The figures in Prometheus' form."""
        if self._catalog_time:
            self._changed.labels(self._model).set(max(self._catalog_time, _modification_time(self._journal)))
        return generate_latest(self._registry).decode()


def _modification_time(file: str | Path | None) -> float:
    """In seconds since 1970; 0 where there is no file."""
    path = Path(file) if file else None
    return path.stat().st_mtime if path and path.exists() else 0.0
