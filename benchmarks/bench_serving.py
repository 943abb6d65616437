"""Load on `convrec serve`, in turns with plain `vllm serve` of the same model, and what faults do to it. Prints JSON.

    python benchmarks/bench_serving.py --model outputs/demo/rank_grpo --catalog outputs/demo/data/catalog.parquet \
        --retrieval outputs/demo/retrieval

KINDS lists what is measured, and the service that answers it. All services run on this machine together with the
clients, but only one is asked at a time: at every level the kinds take turns. The CPU that the idle services take
meanwhile is `idle_cores`. Every request has a conversation of its own. Decoding is greedy; chat completions may have as
many tokens as a list of LIST_ITEMS items has on average. Latency is in seconds, up to the end of an answer.

    services    {service: {"command", "mib": resident once it is warm}}
    levels      {clients at once: {kind: {"answers", "errors": {status, exception or "N items": count}, "per_second",
                "p50", "p95", "p99", "tokens": written per answer, "cores": that its service uses, "idle_cores": that
                the others use, "to_vllm": {"p50", "p95", "p99": multiple of plain vLLM's}}}}
    malformed   {"statuses": {status: count}, "bytes_before", "bytes_after": resident, of front and model}
    faults      {"process" | "engine": {"statuses" of 8 requests in flight, "seconds_to_list": until one comes again}}
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from convrec.base.gpus import usable_gpus
from convrec.checkpoints.models import resolve_model, run_folder
from convrec.data.schema import format_prompt
from convrec.runs.folder import read_config
from convrec.titles.catalog import load_catalog

WISHES = [
    "Any great 2000s war movies out there? Thanks!",
    "What else is scary?",
    "Something funny for the whole family, please.",
    "A slow science fiction film, like Solaris.",
    "Looking for a good historical film tonight.",
]
LIST_ITEMS = 20
# Service -> the candidates that its prompts name. The two with a retrieval differ in nothing else.
CANDIDATES = {"convrec": 0, "fused": 0, "candidates": 50}
RETRIEVING = ("fused", "candidates")
TURNS = 6  # of each kind at every level
SETTLE_SECONDS = 1.5  # before a turn: vLLM's worker spins for a second after its last token
PERCENTILES = (50, 95, 99)
WARM_CLIENTS = 4
WARM_SECONDS = 2.0
READY_SECONDS = 900
END_SECONDS = 30
MALFORMED = (
    "",
    "{",
    "[]",
    "null",
    '{"conversation": 1}',
    '{"conversation": "x", "k": -1}',
    '{"k": 5}',
    "\\ud800",
    '"x"',
)
Request = tuple[str, dict[str, Any]]  # path, body


# ---- what is asked


def iter_conversations(titles: Sequence[str]) -> Iterator[str]:
    """Yield different conversations, so that a prefix cache has the instruction only."""
    chance = random.Random(0)
    while True:
        liked = " and ".join(chance.sample(titles, 2))
        yield f"I loved {liked}. {chance.choice(WISHES)}"


def request_list(conversation: str, tokens: int) -> Request:
    return "/v1/recommendations", {"conversation": conversation, "k": LIST_ITEMS, "model": "demo"}


def request_free_list(conversation: str, tokens: int) -> Request:
    return request_chat(format_prompt(f"USER: {conversation}\n", LIST_ITEMS), tokens)


def request_chat(message: str, tokens: int) -> Request:
    messages = [{"role": "user", "content": message}]
    body = {"model": "demo", "messages": messages, "max_tokens": tokens, "temperature": 0}
    return "/v1/chat/completions", body


@dataclass(frozen=True)
class Kind:
    """A kind of request.

    Attributes:
        service: a name in CANDIDATES, or "vllm".
        make_request: makes a request from a conversation and the number of tokens to write.
        peer: the kind of plain vLLM to compare it with.
    """

    service: str
    make_request: Callable[[str, int], Request]
    peer: str = ""


KINDS = {
    "list": Kind("convrec", request_list, "vllm_free_list"),
    "fused_list": Kind("fused", request_list, "vllm_free_list"),
    "candidates_list": Kind("candidates", request_list, "vllm_free_list"),
    "free_list": Kind("convrec", request_free_list, "vllm_free_list"),
    "chat": Kind("convrec", request_chat, "vllm_chat"),
    "vllm_free_list": Kind("vllm", request_free_list),
    "vllm_chat": Kind("vllm", request_chat),
}


def iter_turns(kinds: Sequence[str]) -> Iterator[str]:
    """Yield the kinds in turns, reversed every second time: if the machine slows down, it slows all kinds equally."""
    for turn in range(TURNS):
        yield from kinds[:: -1 if turn % 2 else 1]


# ---- who answers


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def link_model(model: str, candidates: int, run: Path) -> str:
    """Make a run with the model's weights whose prompts name candidates; return the folder of its checkpoint."""
    config = read_config(trained) if (trained := run_folder(model)) else {}
    config["convrec"] = {**config.get("convrec", {}), "candidates": candidates}
    checkpoint = run / "global_step_1"
    checkpoint.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for file in Path(model).resolve().iterdir():
        (checkpoint / file.name).symlink_to(file)
    return str(checkpoint)


def make_commands(options: argparse.Namespace, model: str, folder: Path) -> dict[str, list[str]]:
    """Return the command of each service, without its port. All have the same weights."""
    vllm = [str(Path(sys.executable).with_name("vllm")), "serve", model, "--served-model-name", "demo"]
    commands = {"vllm": [*vllm, "--host", "127.0.0.1", "--enforce-eager", "--dtype", "float32"]}
    for name, candidates in CANDIDATES.items():
        command = [sys.executable, "-m", "recipes", "serve", "--catalog", options.catalog]
        command += ["--model", f"demo={link_model(model, candidates, folder / name)}"]
        command += ["--state", str(folder / name / "state")]
        commands[name] = [*command, "--retrieval", str(options.retrieval)] if name in RETRIEVING else command
    return commands


class Service:
    """A server on this machine, with its processes.

    Attributes:
        address: where it answers.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self._log = log
        environment = {"VLLM_USE_FLASHINFER_SAMPLER": "0", **os.environ}  # all servers alike
        environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        if not usable_gpus():
            environment["TORCH_COMPILE_DISABLE"] = "1"
        self.command = [*command, "--port", str(port)]
        with open(log, "w") as file:
            self._server = subprocess.Popen(
                self.command, stdout=file, stderr=file, env=environment, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._server.poll() is None:
            try:
                if httpx.get(f"{self.address}/health", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        sys.exit(f"{self.address} does not answer:\n{self._log.read_text()[-2000:]}")

    def terminate(self) -> None:
        self._server.terminate()

    def wait_for_end(self) -> None:
        """Kill it with all it has started if it does not end: vLLM hears no SIGTERM while it starts."""
        try:
            self._server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def find_processes(self, *words: str) -> list[psutil.Process]:
        """Return the processes with all of these words in their name or command line."""
        server = psutil.Process(self._server.pid)
        found = []
        for process in [server, *server.children(recursive=True)]:
            try:
                text = " ".join([process.name(), *process.cmdline()])
            except psutil.Error:
                continue
            if all(word in text for word in words):
                found.append(process)
        return found

    def measure_memory(self) -> int:
        """Return the resident bytes of its processes."""
        return sum(process.memory_info().rss for process in self.find_processes())

    def measure_cpu(self) -> float:
        """Return the seconds of CPU that its processes have taken."""
        times = [process.cpu_times() for process in self.find_processes()]
        return sum(time.user + time.system for time in times)

    def count_tokens(self) -> float:
        """Return the number of tokens that its engine has written."""
        lines = httpx.get(f"{self.address}/metrics", timeout=60).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


# ---- the load


@dataclass
class Answers:
    """What a kind of request got at one level, summed over its turns."""

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    tokens: float = 0.0
    cpu_seconds: float = 0.0
    idle_cpu_seconds: float = 0.0  # of the other services

    def summarize(self) -> dict[str, Any]:
        """Return the figures of a kind in the report, without `to_vllm`."""
        count = len(self.latencies)
        return {
            "answers": count,
            "errors": dict(self.errors),
            "per_second": round(count / self.seconds, 2),
            **compute_percentiles(self.latencies),
            "tokens": round(self.tokens / max(count, 1), 1),
            "cores": round(self.cpu_seconds / self.seconds, 2),
            "idle_cores": round(self.idle_cpu_seconds / self.seconds, 3),
        }


def compute_percentiles(latencies: Sequence[float]) -> dict[str, float]:
    """Return {"p50": seconds, ...}; {} without answers."""
    # the other method extrapolates beyond the longest
    cuts = statistics.quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else [*latencies] * 99
    return {f"p{percent}": round(cuts[percent - 1], 4) for percent in PERCENTILES} if cuts else {}


def compute_ratios(figures: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    """Return each percentile as a multiple of plain vLLM's; {} if either has none."""
    names = [f"p{percent}" for percent in PERCENTILES]
    return {name: round(figures[name] / peer[name], 3) for name in names if name in figures and name in peer}


def find_error(response: httpx.Response) -> str:
    """Return why a response is no whole answer; "" if it is one."""
    if response.status_code != 200:
        return str(response.status_code)
    items = response.json().get("items")
    return "" if items is None or len(items) == LIST_ITEMS else f"{len(items)} items"


async def send_requests(
    address: str, requests: Iterator[Request], clients: int, seconds: float, answers: Answers
) -> None:
    """Let each of the clients send its next request as soon as it is answered.

    Each has a connection of its own: in one pool of httpx with 100 open connections, some get nothing for seconds.
    """

    async def ask(client: httpx.AsyncClient) -> None:
        while (begin := time.monotonic()) < end:
            path, body = next(requests)
            try:
                response = await client.post(path, json=body)
                latency = time.monotonic() - begin
                if error := find_error(response):
                    answers.errors[error] += 1
                else:
                    answers.latencies.append(latency)
            except httpx.HTTPError as failure:
                answers.errors[type(failure).__name__] += 1

    async with AsyncExitStack() as opened:
        connections = [httpx.AsyncClient(base_url=address, timeout=120, verify=False) for _ in range(clients)]
        for connection in connections:
            await opened.enter_async_context(connection)
        begin = time.monotonic()
        end = begin + seconds
        await asyncio.gather(*map(ask, connections))
        answers.seconds += time.monotonic() - begin


class Load:
    """Requests for the services.

    Attributes:
        tokens: of a list, on average; the most that a chat completion may have.
    """

    def __init__(self, services: dict[str, Service], titles: Sequence[str]) -> None:
        self.services = services
        self.tokens = 0
        self._conversations = iter_conversations(titles)
        lists = Answers()
        self.take_turn("list", WARM_CLIENTS, WARM_SECONDS, lists)
        if not lists.latencies:
            sys.exit(f"no list: {dict(lists.errors)}")
        self.tokens = round(lists.tokens / len(lists.latencies))

    def take_turn(self, kind: str, clients: int, seconds: float, answers: Answers) -> None:
        """Send requests of a kind, and add what comes back to its answers."""
        service = self.services[KINDS[kind].service]
        requests = (KINDS[kind].make_request(text, self.tokens) for text in self._conversations)
        others = [other for other in self.services.values() if other is not service]
        if others:
            time.sleep(SETTLE_SECONDS)
        tokens = service.count_tokens()
        cpu_seconds = service.measure_cpu()
        idle_cpu_seconds = sum(other.measure_cpu() for other in others)
        asyncio.run(send_requests(service.address, requests, clients, seconds, answers))
        answers.idle_cpu_seconds += sum(other.measure_cpu() for other in others) - idle_cpu_seconds
        answers.cpu_seconds += service.measure_cpu() - cpu_seconds
        answers.tokens += service.count_tokens() - tokens

    def measure_level(self, kinds: Sequence[str], clients: int, seconds: float) -> dict[str, Any]:
        """Return the figures of each kind. seconds: of all turns of a kind together."""
        answers = {kind: Answers() for kind in kinds}
        for kind in iter_turns(kinds):
            self.take_turn(kind, clients, seconds / TURNS, answers[kind])
        figures = {kind: of_kind.summarize() for kind, of_kind in answers.items()}
        for kind, of_kind in figures.items():
            if KINDS[kind].peer in figures:
                of_kind["to_vllm"] = compute_ratios(of_kind, figures[KINDS[kind].peer])
        return figures


# ---- faults


def send_malformed(service: Service, count: int) -> dict[str, Any]:
    """Send malformed requests; return the statuses of their answers, and the memory before and after."""
    chance = random.Random(0)

    async def send(number: int) -> Counter[int]:
        statuses: Counter[int] = Counter()
        async with httpx.AsyncClient(base_url=service.address, timeout=120) as client:
            for _ in range(number):
                some: list[str | bytes] = [*MALFORMED, chance.randbytes(200).hex(), chance.randbytes(100)]
                content = chance.choice(some)
                path = chance.choice(
                    ["/v1/recommendations", "/v1/chat/completions", "/v1/catalog/items", "/v1/nothing"]
                )
                method = chance.choice(["POST", "POST", "PUT", "DELETE", "PATCH"])
                headers = {"Content-Type": chance.choice(["application/json", "text/plain", "application/x-protobuf"])}
                response = await client.request(method, path, content=content, headers=headers)
                statuses[response.status_code] += 1
        return statuses

    asyncio.run(send(count // 10))  # what is allocated once
    before = service.measure_memory()
    statuses = asyncio.run(send(count))
    return {"statuses": dict(statuses), "bytes_before": before, "bytes_after": service.measure_memory()}


def kill_during_lists(service: Service, *words: str) -> dict[str, Any]:
    """Kill the process with these words in its command line while 8 lists are written."""
    victim = service.find_processes(*words)[0]
    path, body = request_list(WISHES[0], 0)

    async def scenario() -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=service.address, timeout=180) as client:
            asked = [asyncio.ensure_future(client.post(path, json=body)) for _ in range(8)]
            await asyncio.sleep(0.3)
            os.kill(victim.pid, signal.SIGKILL)
            begin = time.monotonic()
            answers = await asyncio.gather(*asked)
            while (await client.post(path, json=body)).status_code != 200:
                await asyncio.sleep(0.2)
            statuses = Counter(answer.status_code for answer in answers)
            return {"statuses": dict(statuses), "seconds_to_list": round(time.monotonic() - begin, 1)}

    return asyncio.run(scenario())


VICTIMS = {"engine": ("EngineCore",), "process": ("convrec.inference.engines.child",)}


def measure(options: argparse.Namespace, services: dict[str, Service]) -> dict[str, Any]:
    """Return the report."""
    load = Load(services, load_catalog(options.catalog).titles)
    for kind in options.kinds:
        load.take_turn(kind, WARM_CLIENTS, WARM_SECONDS, Answers())
    running = {
        name: {"command": " ".join(service.command), "mib": service.measure_memory() >> 20}
        for name, service in services.items()
    }
    report: dict[str, Any] = {"services": running, "tokens_of_a_list": load.tokens, "levels": {}}
    for clients in map(int, options.levels.split(",")):
        report["levels"][str(clients)] = load.measure_level(options.kinds, clients, options.seconds)
        print(json.dumps({clients: report["levels"][str(clients)]}), file=sys.stderr, flush=True)
    if options.malformed:
        report["malformed"] = send_malformed(services["convrec"], options.malformed)
        print(json.dumps(report["malformed"]), file=sys.stderr, flush=True)
    if options.faults:
        report["faults"] = {name: kill_during_lists(services["convrec"], *words) for name, words in VICTIMS.items()}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--retrieval", help="folder of `convrec retrieval fit` (else no kind with retrieval)")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, help="default: all; one GPU has memory for a single service"
    )
    parser.add_argument("--levels", default="1,10,100", help="clients at once")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each kind at each level")
    parser.add_argument("--malformed", type=int, default=10_000, help="number of malformed requests")
    parser.add_argument("--no-faults", dest="faults", action="store_false")
    options = parser.parse_args()
    possible = [kind for kind in KINDS if options.retrieval or KINDS[kind].service not in RETRIEVING]
    options.kinds = options.kinds or possible
    if missing := set(options.kinds) - set(possible):
        parser.error(f"--kinds {' '.join(sorted(missing))}: --retrieval is missing")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    model = resolve_model(options.model, "--model ")
    if not Path(model).is_dir():
        parser.error(f"--model {model}: not a folder; write an id with its revision, ORGANISATION/NAME@REVISION")
    used = {"convrec", *(KINDS[kind].service for kind in options.kinds)}
    services: dict[str, Service] = {}
    with tempfile.TemporaryDirectory(prefix="convrec-bench-") as folder:
        try:
            for name, command in make_commands(options, model, Path(folder)).items():
                if name in used:
                    services[name] = Service(command, Path(folder, f"{name}.log"))
            for service in services.values():
                service.wait()
            print_report(measure(options, services))
        finally:
            for service in services.values():
                service.terminate()
            for service in services.values():
                service.wait_for_end()


if __name__ == "__main__":
    main()
