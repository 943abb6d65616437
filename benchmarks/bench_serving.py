"""Load on `convrec serve`, beside plain `vllm serve` of the same model, and what faults do to it. JSON on stdout.

    python benchmarks/bench_serving.py --model outputs/demo/rank_grpo --catalog outputs/demo/data/catalog.parquet

Both servers run at once on this machine, and the client takes six turns between them at every level: `list` is POST
/v1/recommendations of 20 items, `chat` our /v1/chat/completions, `plain` vLLM's own, the last two with the same body:
the prompt that the list has, greedy, as many tokens as a list of 20 items has on average. Latency is of whole answers.

    levels      {concurrent: {"list" | "chat" | "plain": {"answers", "errors", "per_second", "p50", "p95", "p99"},
                "chat_to_plain", "list_to_plain": {"p50", "p95", "p99": ratio}}}; seconds
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
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from convrec.base.gpus import usable_gpus
from convrec.checkpoints.models import resolve_model
from convrec.data.schema import format_prompt

TALK = [
    "Hello. Any great 2000s war movies out there? Thanks!",
    "I loved Alien and The Thing. What else is scary?",
    "Something funny for the whole family, please.",
    "A slow science fiction film, like Solaris.",
    "Looking for a good historical film tonight.",
]
LIST_ITEMS = 20
TURNS = 6  # of each service at every level
PERCENTILES = (50, 95, 99)
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
Ask = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(command: list[str], log: Path) -> subprocess.Popen:
    environment = {"VLLM_USE_FLASHINFER_SAMPLER": "0", **os.environ}  # both servers alike
    environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if not usable_gpus():
        environment["TORCH_COMPILE_DISABLE"] = "1"
    with open(log, "w") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)


def wait_for_end(server: subprocess.Popen) -> None:
    """Kill it with all it has started if it does not end: vLLM hears no SIGTERM while it starts."""
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    sys.exit(f"{address} does not answer:\n{log.read_text()[-2000:]}")


class Answers:
    """What one service has answered at one level."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.seconds = 0.0

    def figures(self) -> dict[str, Any]:
        cuts = statistics.quantiles(self.latencies, n=100) if len(self.latencies) > 1 else self.latencies * 99
        of_p = {f"p{p}": round(cuts[p - 1], 4) for p in PERCENTILES} if cuts else {}
        per_second = round(len(self.latencies) / self.seconds, 2)
        return {"answers": len(self.latencies), "errors": dict(self.errors), "per_second": per_second, **of_p}


async def load(address: str, ask: Ask, concurrent: int, seconds: float, answers: Answers) -> None:
    """`concurrent` conversations at once, each asking again when it was answered, on a connection of its own: one pool
    of httpx for 100 that are kept open gives some of them nothing for seconds."""
    latencies, errors = answers.latencies, answers.errors

    async def talk(client: httpx.AsyncClient, number: int) -> None:
        while (begin := time.monotonic()) < end:
            try:
                response = await ask(client, number)
                if response.status_code == 200:
                    latencies.append(time.monotonic() - begin)
                else:
                    errors[str(response.status_code)] += 1
            except httpx.HTTPError as error:
                errors[type(error).__name__] += 1
            number += concurrent

    async with AsyncExitStack() as opened:
        clients = [httpx.AsyncClient(base_url=address, timeout=120, verify=False) for _ in range(concurrent)]
        for client in clients:
            await opened.enter_async_context(client)
        begin = time.monotonic()
        end = begin + seconds
        await asyncio.gather(*map(talk, clients, range(concurrent)))
        answers.seconds += time.monotonic() - begin


def request_list(client: httpx.AsyncClient, number: int) -> Awaitable[httpx.Response]:
    body = {"conversation": TALK[number % len(TALK)], "k": LIST_ITEMS, "model": "demo"}
    return client.post("/v1/recommendations", json=body)


def completion_of(tokens: int) -> Ask:
    def ask(client: httpx.AsyncClient, number: int) -> Awaitable[httpx.Response]:
        prompt = format_prompt(f"USER: {TALK[number % len(TALK)]}\n", LIST_ITEMS)
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "demo", "messages": messages, "max_tokens": tokens, "temperature": 0}
        return client.post("/v1/chat/completions", json=body)

    return ask


def tokens_of_a_list(address: str) -> int:
    """Mean, of one list for each conversation."""

    def written() -> float:
        lines = httpx.get(f"{address}/metrics", timeout=60).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))

    async def ask_all() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=120) as client:
            for number in range(len(TALK)):
                (await request_list(client, number)).raise_for_status()

    before = written()
    asyncio.run(ask_all())
    return round((written() - before) / len(TALK))


def ours(server: subprocess.Popen, *words: str) -> list[psutil.Process]:
    """Processes of the service with all of these words in their command line or name."""
    found = []
    for process in psutil.Process(server.pid).children(recursive=True):
        try:
            text = " ".join([process.name(), *process.cmdline()])
        except psutil.Error:
            continue
        if all(word in text for word in words):
            found.append(process)
    return found


def malformed(address: str, server: subprocess.Popen, count: int) -> dict[str, Any]:
    """So many requests that nobody should answer; what they are answered, and the memory they leave."""
    chance = random.Random(0)

    def resident() -> int:
        return sum(process.memory_info().rss for process in ours(server, "python"))

    async def send(number: int) -> Counter[int]:
        statuses: Counter[int] = Counter()
        async with httpx.AsyncClient(base_url=address, timeout=120) as client:
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
    before = resident()
    statuses = asyncio.run(send(count))
    return {"statuses": dict(statuses), "bytes_before": before, "bytes_after": resident()}


def fault(address: str, victim: psutil.Process) -> dict[str, Any]:
    """Kill it while 8 lists are written."""

    async def scenario() -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=address, timeout=180) as client:
            asked = [asyncio.ensure_future(request_list(client, number)) for number in range(8)]
            await asyncio.sleep(0.3)
            os.kill(victim.pid, signal.SIGKILL)
            begin = time.monotonic()
            answers = await asyncio.gather(*asked)
            while (await request_list(client, 0)).status_code != 200:
                await asyncio.sleep(0.2)
            statuses = Counter(answer.status_code for answer in answers)
            return {"statuses": dict(statuses), "seconds_to_list": round(time.monotonic() - begin, 1)}

    return asyncio.run(scenario())


def compute_ratios(ours_figures: dict[str, Any], plain_figures: dict[str, Any]) -> dict[str, float]:
    """Percentile -> our seconds as a multiple of plain vLLM's."""
    names = [f"p{percent}" for percent in PERCENTILES]
    return {name: round(ours_figures[name] / plain_figures[name], 3) for name in names}


def measure(options: argparse.Namespace, ours_at: str, plain_at: str, server: subprocess.Popen) -> dict[str, Any]:
    tokens = tokens_of_a_list(ours_at)
    turns = {
        "list": (ours_at, request_list),
        "chat": (ours_at, completion_of(tokens)),
        "plain": (plain_at, completion_of(tokens)),
    }
    if not options.plain:
        del turns["plain"]
    for address, ask in turns.values():
        asyncio.run(load(address, ask, 4, 2.0, Answers()))  # warm
    levels: dict[str, Any] = {}
    for concurrent in map(int, options.levels.split(",")):
        answers = {name: Answers() for name in turns}
        for _ in range(TURNS):
            for name, turn in turns.items():
                asyncio.run(load(*turn, concurrent, options.seconds / TURNS, answers[name]))
        found = {name: of_one.figures() for name, of_one in answers.items()}
        if options.plain and all("p50" in one for one in found.values()):
            found |= {f"{name}_to_plain": compute_ratios(found[name], found["plain"]) for name in ("chat", "list")}
        levels[str(concurrent)] = found
        print(json.dumps({concurrent: found}), file=sys.stderr, flush=True)
    result: dict[str, Any] = {"tokens_of_a_list": tokens, "levels": levels}
    if options.malformed:
        result["malformed"] = malformed(ours_at, server, options.malformed)
        print(json.dumps(result["malformed"]), file=sys.stderr, flush=True)
    if options.faults:
        victims = {"engine": ("EngineCore",), "process": ("convrec.inference.engines.child",)}
        result["faults"] = {name: fault(ours_at, ours(server, *words)[0]) for name, words in victims.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--levels", default="1,10,100", help="conversations at once")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each level and service")
    parser.add_argument("--malformed", type=int, default=10_000, help="requests; 0: none")
    parser.add_argument("--no-faults", dest="faults", action="store_false")
    parser.add_argument("--no-plain", dest="plain", action="store_false", help="without vLLM's own, as on one GPU")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    model = resolve_model(options.model, "--model ")
    ports = free_port(), free_port()
    ours_at, plain_at = (f"http://127.0.0.1:{port}" for port in ports)
    with tempfile.TemporaryDirectory(prefix="convrec-bench-") as folder:
        logs = Path(folder, "ours.log"), Path(folder, "plain.log")
        state = ["--state", str(Path(folder, "state"))]
        server = [sys.executable, "-m", "recipes", "serve"]
        server += ["--model", f"demo={model}", "--catalog", options.catalog, *state]
        vllm = [str(Path(sys.executable).with_name("vllm")), "serve", model, "--served-model-name", "demo"]
        vllm += ["--host", "127.0.0.1", "--enforce-eager", "--dtype", "float32"]
        processes = [start([*server, "--port", str(ports[0])], logs[0])]
        if options.plain:
            processes.append(start([*vllm, "--port", str(ports[1])], logs[1]))
        try:
            for address, process, log in zip((ours_at, plain_at), processes, logs, strict=False):
                wait_for(address, process, log)
            print_report(measure(options, ours_at, plain_at, processes[0]))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                wait_for_end(process)


if __name__ == "__main__":
    main()
