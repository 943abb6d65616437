"""Fixtures shared by all tests."""

import itertools
import json
import logging
import os
import shutil
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from convrec.checkpoints import manifest
from convrec.runs.folder import LATEST
from tests.record import ResultRecorder

ROOT = Path(__file__).resolve().parents[1]
# Files of quick tests that start Ray, vLLM, processes of torch, a browser or a service, or compose many runs; all
# others are units. `make test-unit` and `make test-contract` run one or the other.
CONTRACT = frozenset(
    {
        "tests/convrec/checkpoints/test_lora.py",
        "tests/convrec/checkpoints/test_plain_load.py",
        "tests/convrec/checkpoints/test_reshard.py",
        "tests/convrec/cpu/test_fork_server.py",
        "tests/convrec/data/test_families.py",
        "tests/convrec/rollout/test_queue_sockets.py",
        "tests/convrec/runs/test_guard.py",
        "tests/convrec/runs/test_memory.py",
        "tests/convrec/runs/test_stacks.py",
        "tests/convrec/runs/test_supervisor.py",
        "tests/convrec/training/test_constrained_head.py",
        "tests/convrec/training/test_fused_head.py",
        "tests/convrec/training/test_one_step.py",
        "tests/convrec/training/trackers/test_tracking.py",
        "tests/data_prep/test_build.py",
        "tests/recipes/cluster/test_job_environment.py",
        "tests/recipes/cluster/test_jobs.py",
        "tests/recipes/launch/test_environment.py",
        "tests/recipes/launch/test_hydra_errors.py",
        "tests/recipes/launch/test_ray_training.py",
        "tests/recipes/launch/test_runner.py",
        "tests/recipes/launch/test_settings.py",
        "tests/recipes/preflight/test_checks.py",
        "tests/recipes/preflight/test_constrained.py",
        "tests/recipes/preflight/test_precision.py",
        "tests/recipes/serving/test_chat.py",
        "tests/recipes/serving/test_drain.py",
        "tests/recipes/serving/test_http.py",
        "tests/recipes/serving/test_large_requests.py",
        "tests/recipes/serving/test_page.py",
        "tests/recipes/serving/test_processes.py",
        "tests/recipes/serving/test_strangers.py",
        "tests/recipes/test_cli.py",
        "tests/recipes/test_doctor.py",
        "tests/recipes/test_plan.py",
        "tests/test_examples.py",
    }
)

# on a machine that is busy an example may take any time
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
# make mutation: every mutant gets the same examples, and a failing one is not made smaller
settings.register_profile(
    "mutation",
    settings.get_profile("busy"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="add the results of each test file to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # xdist: its main process gets all reports
    if (path := config.getoption("--record")) and not is_worker:
        config.pluginmanager.register(ResultRecorder(path.absolute()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(ROOT).as_posix() in CONTRACT:
            item.add_marker(pytest.mark.contract)


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard() -> None:
    """A background job of a script has SIGINT ignored; tests that raise it would wait for ever."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def broken_pipes_stay_errors() -> Iterator[None]:
    """What sets SIGPIPE to the kernel's action in this process has a later test's lost connection end it silently."""
    yield
    left, _ = signal.getsignal(signal.SIGPIPE), signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    assert left is signal.SIG_IGN


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Warnings are heard: libraries raise the root logger's level, and disable our loggers, for the whole process."""
    caplog.set_level(logging.WARNING)
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.startswith(("convrec.", "recipes.", "data_prep.")) and isinstance(logger, logging.Logger):
            logger.disabled = False
    return caplog


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real data: `../shared` beside the repository, else $CONVREC_SHARED."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    named = os.environ.get("CONVREC_SHARED")
    for folder in (beside, Path(named) if named else None):
        if folder and folder.is_dir():
            return folder
    pytest.skip("real data: no ../shared beside the repository, and CONVREC_SHARED is not set")


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """What tests/golden/NAME.json holds."""

    def read(name: str) -> Any:
        return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text(encoding="utf-8"))

    return read


class ChatServer(ThreadingHTTPServer):
    """An OpenAI-compatible chat endpoint on 127.0.0.1 that answers what `behave` says.

    behave(body, count) -> an answer's text, or (status, headers, text) for anything else; body is the request's, count
    how many came before. `bodies` and `headers` are those received, `most_at_once` the most that were open together.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behave: Callable[[dict, int], str | tuple[int, dict[str, str], str]]) -> None:
        super().__init__(("127.0.0.1", 0), _ChatHandler)
        self.behave = behave
        self.bodies: list[dict] = []
        self.headers: list[Message] = []
        self.lock = threading.Lock()
        self.open_now = self.most_at_once = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _ChatHandler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            count = len(server.bodies)
            server.bodies.append(body)
            server.headers.append(self.headers)
            server.open_now += 1
            server.most_at_once = max(server.most_at_once, server.open_now)
        try:
            reply = server.behave(body, count)
        finally:
            with server.lock:
                server.open_now -= 1
        status, headers, content = reply if isinstance(reply, tuple) else (200, {}, self.completion(body, reply))
        sent = content.encode(errors="surrogateescape")
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(sent))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)

    @staticmethod
    def completion(body: dict, text: str) -> str:
        message = {"role": "assistant", "content": text}
        return json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            }
        )

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def chat_server() -> Iterator[Callable[..., ChatServer]]:
    """Starts such servers; all are ended with the test."""
    servers = []

    def start(behave: Callable[[dict, int], str | tuple[int, dict[str, str], str]]) -> ChatServer:
        servers.append(ChatServer(behave))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def no_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of such a server asks again at once."""
    monkeypatch.setattr("convrec.llm.client.back_off", lambda retry: 0.001)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that does not reach the Hub; returns the folder of its cache, which is empty."""
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


def cache_config(cache: Path, model: str) -> None:
    """Write an empty config of organisation/name into the Hub's cache, as if it had been downloaded."""
    folder = cache / f"models--{model.replace('/', '--')}"
    (folder / "snapshots" / "1").mkdir(parents=True)
    (folder / "snapshots" / "1" / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1")


@pytest.fixture(scope="session")
def sound_model() -> Callable[..., Path]:
    """Writes what passes for a whole checkpoint: a config, a tokenizer that fits it, one number of weights."""

    def write(folder: Path, weight: float = 0.5) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"vocab_size": 2}))
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
        header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        content = len(header).to_bytes(8, "little") + header + struct.pack("<f", weight)
        (folder / "model.safetensors").write_bytes(content)
        return folder

    return write


def mark_complete(run: Path, *steps: int) -> None:
    """Make these steps of a run complete checkpoints, whatever is in their folders, the last one the newest."""
    for step in steps:
        folder = run / f"global_step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        manifest.write(folder)
    (run / LATEST).write_text(str(steps[-1]))


@pytest.fixture
def validated_run(tmp_path: Path, sound_model: Callable[..., Path]) -> Path:
    """A run folder with the steps 100 and 200, of which validation found 100 the better one."""
    run = tmp_path / "validated"
    for step in (100, 200):
        sound_model(run / f"global_step_{step}" / "actor" / "huggingface", weight=step)
    mark_complete(run, 100, 200)
    (run / "best.json").write_text('{"step": 100, "val/ndcg": 0.5}')
    return run


@pytest.fixture
def save_better_after_reads(validated_run: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the run's training find step 200 the best once best.json has been read so often."""

    def save_better_after_reads(num_reads: int) -> None:
        read_text = Path.read_text
        reads = itertools.count(1)

        def read_then_save(path: Path, *arguments: Any, **options: Any) -> str:
            text = read_text(path, *arguments, **options)
            if path == validated_run / "best.json" and next(reads) == num_reads:
                path.write_text('{"step": 200, "val/ndcg": 0.6}')
            return text

        monkeypatch.setattr(Path, "read_text", read_then_save)

    return save_better_after_reads


@pytest.fixture
def replace_when_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Any], None]:
    """Replaces a catalog by a table when its titles have just been read, as a shop's export does now and then."""
    import pyarrow.parquet as pq

    def replace_when_read(file: Path, table: Any) -> None:
        read_table = pq.read_table

        def read_then_replace(source: Any, *arguments: Any, **options: Any) -> Any:
            content = read_table(source, *arguments, **options)
            if str(source) == str(file):
                pq.write_table(table, file)
            return content

        monkeypatch.setattr(pq, "read_table", read_then_replace)

    return replace_when_read


@pytest.fixture(scope="session")
def line_tokenizer() -> Any:
    """A byte-level tokenizer that splits at line breaks, as those of Qwen and Llama-3 do, with few words."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    texts = ["Toy Story (1995)\nToy Story 2 (1999)\nAmélie (2001)\nHeat (1995)\n"] * 4
    trained.train_from_iterator(texts, vocab_size=330, min_frequency=1, special_tokens=["<end>"])
    end = "{% if message['role'] == 'assistant' %}<end>{% endif %}"
    template = "{% for message in messages %}{{ message['content'] }}" + end + "\n{% endfor %}"
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<end>", chat_template=template)


@pytest.fixture(scope="session")
def unread_model(line_tokenizer: Any, tmp_path_factory: Any) -> Path:
    """A model of which all is read but the numbers of its weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("unread") / "model"
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 320}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, max_position_embeddings=4096)).save_pretrained(folder)
    line_tokenizer.save_pretrained(folder)
    config = {"model_type": "qwen2", "max_position_embeddings": 4096, **sizes, **heads}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An installed Chromium, driven by Playwright; it loads nothing from elsewhere.

    Ended with the module: Playwright keeps an event loop running in this thread, and other tests start their own.
    """
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not found:
        pytest.skip("the chat page is tested in a browser: install one (apt-get install chromium)")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=[*quiet, "--disable-sync"])
        yield started
        started.close()
