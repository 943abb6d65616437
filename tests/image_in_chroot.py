"""The Dockerfile's instructions in a chroot, where there is no engine and no registry. As root, on Debian or Ubuntu:

    debootstrap --variant=minbase --include=ca-certificates,python3-dev,python3-venv bookworm /tmp/base
    python tests/image_in_chroot.py /tmp/base --extra cpu

The folder stands in for the FROM image and becomes the image: it is changed. Of the host it gets the resolver, the
certificates and the settings of apt, pip and uv. COPY takes what git has; RUN, as in an engine, sees the variables of
ENV and ARG alone, and its processes end with it. At the end the image's user runs what KubeRay, a job and a user would
call first, on a network of its own, and asks a model that serves by the health check.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_THE_HOST = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf", "/etc/hosts")
SETTINGS = re.compile(r"PIP_\w+|UV_\w+|SSL_CERT_FILE|(?i:(https?|no)_proxy)")
TRIED = (  # by the image's user, in its folder
    'test "$(id -u)" = 1000 && bash --version | head -1 && wget --version | head -1 && ray --version',
    "convrec --version && convrec --help | head -3",
    "convrec data sample --out data --train 200 --validation 20 --test 20",
    "convrec evaluate --data data/test.parquet --catalog data/catalog.parquet --train data/train.parquet --out out",
    "python -c 'import torch, vllm; print(torch.__version__, vllm.__version__)'",
    "! touch /opt/convrec/anything 2>/dev/null",
    # as KubeRay starts a head, and its probes; Ray gives a raylet 30 s, which a busy machine may not keep
    """set -e
head() {
  ray start --head --block --num-cpus=1 --object-store-memory=100000000 --dashboard-host=0.0.0.0 \\
    --dashboard-agent-listen-port=52365 --metrics-export-port=8080 > ray.log & ray=$!
}
head
until wget --tries 1 -T 10 -q -O- http://localhost:52365/api/local_raylet_healthz | grep success \\
  && wget --tries 1 -T 10 -q -O- http://localhost:8265/api/gcs_healthz | grep success; do
  kill -0 $ray || { cat ray.log; test $((tries += 1)) -lt 4; head; }
  sleep 1
done
kill $ray; wait $ray || echo "ray ended, exit status" $?""",
    """set -e
convrec tiny-model --data data --out model
convrec serve --model tiny=model --catalog data/catalog.parquet & served=$!
if $HEALTH; then exit 1; fi
until $HEALTH; do kill -0 $served; sleep 1; done
echo "the health check's status is 0"
wget -q -O- --header "Content-Type: application/json" http://127.0.0.1:8000/v1/recommendations \\
  --post-data '{"conversation": [{"role": "user", "content": "Something like Alien?"}], "k": 3}'; echo
kill $served; wait $served || echo "stopped as an engine does: exit status $?"
if $HEALTH; then exit 1; fi""",
)
# a container's namespaces, as far as it matters: what a command has started ends with it
ENTER = """set -e
mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --bind /dev "$1/dev"; mount -t tmpfs tmpfs "$1/dev/shm"
if [ "$2" != host ]; then # the loopback, and an address as a container has one
  ip link set lo up; ip link add node0 type veth peer name node1; ip address add 10.99.0.2/24 dev node0
  ip link set node0 up; ip link set node1 up; ip route add default via 10.99.0.1
fi
root=$1 user=$3; shift 3
exec chroot --userspec="$user:$user" "$root" "$@"
"""


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest), continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = filter(str.strip, text.replace("\\\n", " ").splitlines())
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


class Chroot:
    def __init__(self, base: Path, arguments: dict[str, str]) -> None:
        self.base, self.arguments, self.folder, self.user = base, arguments, "/", "0"
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.shell, self.health = ["/bin/sh", "-c"], ""
        self.host = {name: value for name, value in os.environ.items() if SETTINGS.fullmatch(name)}

    def value(self, text: str) -> str:
        known = self.arguments | self.environment
        return re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], ""), text)

    def run(self, command: str, network: str = "host") -> None:
        start = time.monotonic()
        environment = self.host | self.arguments | self.environment | {"HOME": "/root"}
        if self.user != "0":
            environment["HOME"] = self.folder
        program = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
        program += ["--net"] if network != "host" else []
        program += ["sh", "-c", ENTER, "sh", str(self.base), network, self.user, *self.shell]
        command = f"cd {shlex.quote(self.folder)} && {{ {command} ; }}"
        print(f"+ {' '.join(command.split())[:160]}", flush=True)
        subprocess.run([*program, command], env=environment, check=True)
        print(f"  {time.monotonic() - start:.0f} s", flush=True)

    def do(self, name: str, rest: str) -> None:
        match name:
            case "ARG":
                key, _, default = rest.partition("=")
                self.arguments.setdefault(key, default)
            case "SHELL":
                self.shell = json.loads(rest)
            case "RUN":
                self.run(rest)
            case "ENV":
                for pair in shlex.split(rest):
                    key, _, value = pair.partition("=")
                    self.environment[key] = self.value(value)
            case "WORKDIR":
                self.folder = rest
                (self.base / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = rest
            case "COPY":
                self.copy(*rest.split())
            case "HEALTHCHECK":
                self.health = shlex.join(json.loads(rest.partition("CMD ")[2]))
            case _:
                assert name in ("FROM", "LABEL", "EXPOSE", "CMD"), name

    def copy(self, *names: str) -> None:
        """What git has of these, as the engine would be sent it."""
        *sources, target = names
        folder = self.base / self.folder.lstrip("/") / target
        for source in sources:
            listed = subprocess.run(["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True)
            for file in listed.stdout.split():
                inside = Path(file).relative_to(source) if (ROOT / source).is_dir() else Path(file).name
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, folder / inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", type=Path, help="folder that stands in for the FROM image; it is changed")
    parser.add_argument("--extra", default="gpu", choices=("gpu", "cpu"))
    parser.add_argument("--built", action="store_true", help="it has been built: only what its user runs, again")
    options = parser.parse_args()
    for file in filter(os.path.exists, OF_THE_HOST):
        target = options.base / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    image = Chroot(options.base.resolve(), {"EXTRA": options.extra})
    for name, rest in instructions():
        if not (options.built and name in ("RUN", "COPY")):
            image.do(name, rest)
    image.run("rm -rf data out model ray.log")
    for command in TRIED if options.extra == "cpu" else TRIED[:-1]:  # nothing serves from the other one without a GPU
        image.run(command.replace("$HEALTH", image.health), network="own")
    print(f"image of {options.extra}: all instructions ran, and its user's commands", file=sys.stderr)


if __name__ == "__main__":
    main()
