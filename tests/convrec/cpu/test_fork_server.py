"""Processes forked for the clients that Ray and multiprocessing start."""

import importlib
import inspect
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from ray._private.runtime_env.context import RuntimeEnvContext
from ray._private.utils import update_envs

from convrec.cpu import fork_server, preload

WORKER = """
import json, os, sys, counted
os.write(4, json.dumps([sys.argv, os.getcwd(), os.environ.get("HERE"), os.getpid(), os.getppid()]).encode())
sys.exit(3)
"""


def note(file):
    """What this process is, and one that it spawns, as multiprocessing has been told to."""
    if file.suffix:
        child = multiprocessing.get_context("spawn").Process(target=note, args=[file.with_suffix("")])
        child.start()
        child.join()
    parent = psutil.Process().parent().cmdline()
    file.write_text(json.dumps([os.environ.get("HERE"), "convrec.cpu.fork_server" in parent]))


def wait_in(file):
    signal.signal(signal.SIGUSR1, lambda *_: file.with_suffix(".usr1").touch())
    file.write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Of a server that has imported `counted`, which notes each of its imports, and has `note` and `wait_in`."""
    imports = "import json, multiprocessing, os, signal, time, psutil"
    functions = f"{inspect.getsource(note)}\n{inspect.getsource(wait_in)}"
    counting = f"open({str(tmp_path / 'imports')!r}, 'a').write('import\\n')"
    (tmp_path / "counted.py").write_text(f"{imports}\n{functions}\nif 'SERVERS' in os.environ:\n    {counting}\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "default_worker.py").write_text(WORKER)
    (tmp_path / "setup_worker.py").write_text("import sys\nprint('set up', *sys.argv[1:])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    server = fork_server.start(tmp_path, ["counted"], {"SERVERS": "yes"})
    yield tmp_path / fork_server.CLIENT
    server.kill()
    server.wait()


def start(client, *arguments, **options):
    return subprocess.Popen([sys.executable, str(client), *arguments], **options)


def worker(client, context, *arguments):
    given = [str(client.parent / "default_worker.py"), *arguments, "--language=PYTHON"]
    return start(client, *given, f"--serialized-runtime-env-context={json.dumps(context)}", stdout=subprocess.PIPE)


def test_ray_worker_is_a_fork_with_the_clients_context(client, tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", "before")
    read, write = os.pipe()
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    workers = [str(tmp_path / "default_worker.py"), "--a=1", "--b"]
    for _ in range(2):
        done = start(
            client, *workers, "--language=PYTHON", cwd=folder, preexec_fn=lambda: os.dup2(write, 4), close_fds=False
        )
        argv, cwd, here, pid, parent = json.loads(os.read(read, 10_000))
        assert (argv, cwd, here) == (workers, str(folder), "before")
        assert pid != done.pid
        assert "convrec.cpu.fork_server" in psutil.Process(parent).cmdline()
        assert done.wait() == 3
    assert (tmp_path / "imports").read_text() == "import\n"  # the server's


def test_a_fork_has_its_own_title(tmp_path, monkeypatch):
    (tmp_path / "default_worker.py").write_text("import setproctitle as t; t.setproctitle('VLLM::Test'); input()")
    server = fork_server.start(tmp_path, ["ray"], {})
    asking = start(tmp_path / fork_server.CLIENT, str(tmp_path / "default_worker.py"), stdin=subprocess.PIPE)
    until(lambda: "VLLM::Test" in [process.name() for process in psutil.Process(server.pid).children()])
    asking.communicate(b"\n")
    assert asking.returncode == 0
    server.kill()
    server.wait()


def test_forks_draw_their_own_ids_and_random_numbers(tmp_path):
    actor = "import numpy, ray, torch\n@ray.remote\nclass Actor:\n    pass\n"  # Ray draws an id for it
    (tmp_path / "actors.py").write_text(actor)
    drawn = "ray.ObjectRef.from_random().hex(), torch.initial_seed(), numpy.random.random()"
    (tmp_path / "default_worker.py").write_text(f"import numpy, ray, torch; print({drawn})")
    server = fork_server.start(tmp_path, [preload.MODULES[0], "actors"], {"PYTHONPATH": str(tmp_path)})
    worker = [sys.executable, str(tmp_path / fork_server.CLIENT), str(tmp_path / "default_worker.py")]
    first, second = (subprocess.check_output(worker).split() for _ in range(2))
    assert len(first) == 3
    assert not set(first) & set(second)
    server.kill()
    server.wait()


@pytest.mark.parametrize("variables", [{}, {"A": "x", "HERE": "${A}/${NO_SUCH}:$HOME"}])
def test_a_worker_has_the_variables_that_ray_would_give_it(client, tmp_path, monkeypatch, variables):
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    (tmp_path / "default_worker.py").write_text(script)
    found = json.loads(worker(client, {"env_vars": variables, "py_executable": sys.executable}).communicate()[0])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    update_envs(variables)
    assert os.environ.items() <= found.items()
    assert "SERVERS" not in found  # the server's own


@pytest.mark.parametrize("context", [{"command_prefix": ["nice"]}, {"py_executable": "/other/python"}])
def test_runtime_env_beyond_variables_is_set_up_by_ray(client, tmp_path, context):
    whole = {**RuntimeEnvContext().__dict__, **context}
    said, _ = worker(client, whole, "--a=1").communicate()
    assert said.decode().startswith(f"set up {tmp_path}/default_worker.py --a=1 --language=PYTHON")


def test_without_a_server_the_client_becomes_python(client, tmp_path):
    (tmp_path / "fork.sock").unlink()
    assert (
        subprocess.check_output([client, "-c", "import sys; print(sys.flags.isolated, *sys.argv[1:])", "x"]) == b"0 x\n"
    )
    assert worker(client, {}, "--a=1").communicate()[0].startswith(b"set up")


def spawned(client, name, *arguments):
    target = getattr(importlib.import_module("counted"), name)
    multiprocessing.set_executable(str(client))
    try:
        process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
        process.start()
    finally:
        multiprocessing.set_executable(sys.executable)
    return process


def test_multiprocessing_spawn_forks_even_when_nested(client, tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", "before")
    process = spawned(client, "note", tmp_path / "note.txt")
    process.join(60)
    assert process.exitcode == 0
    assert json.loads((tmp_path / "note.txt").read_text()) == ["before", True]
    assert json.loads((tmp_path / "note").read_text()) == ["before", True]
    assert (tmp_path / "imports").read_text() == "import\n"


def until(found):
    deadline = time.monotonic() + 120
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def waiting(client, tmp_path):
    """A spawned process that waits, and its id."""
    process, file = spawned(client, "wait_in", tmp_path / "pid"), tmp_path / "pid"
    until(lambda: file.exists() and file.read_text())
    yield process, psutil.Process(int(file.read_text()))
    process.kill()


def test_client_forwards_signals_and_exits_as_its_fork_does(waiting, tmp_path):
    process, forked = waiting
    os.kill(process.pid, signal.SIGUSR1)
    until(lambda: (tmp_path / "pid.usr1").exists())
    process.terminate()
    process.join(30)
    assert process.exitcode == -signal.SIGTERM
    assert not forked.is_running()


def test_the_process_of_a_killed_client_is_killed(waiting):
    process, forked = waiting
    process.kill()
    until(lambda: not forked.is_running())


def test_killed_fork_appears_killed_to_the_clients_parent(waiting):
    process, forked = waiting
    forked.kill()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL


def test_a_server_that_is_gone_ends_its_clients(waiting):
    process, forked = waiting
    forked.parent().kill()
    until(lambda: process.exitcode is not None)  # `join` waits for what the fork has open, too
    assert process.exitcode == 1
    forked.kill()


def test_new_pythonpath_folders_keep_their_order_in_sys_path(monkeypatch):
    monkeypatch.setattr(sys, "path", ["ours", "more", "site-packages"])
    fork_server._add_paths("ours:users::more")
    assert sys.path == ["ours", "users", "more", "site-packages"]
