"""The Dockerfile's instructions in a chroot, where there is no engine and no registry. As root, on Debian or Ubuntu:

    debootstrap --variant=minbase --include=ca-certificates,python3-dev,python3-venv bookworm /tmp/base
    python tests/image_in_chroot.py /tmp/base --extra cpu

The folder stands in for the FROM image and becomes the image: it is changed. Of the host it gets the resolver, the
certificates and the settings of apt, pip and uv. COPY takes what git has; RUN, as in an engine, sees the variables of
ENV and ARG alone. At the end the image's user runs what KubeRay, a job and a user would call first.
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
)


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest), continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = filter(str.strip, text.replace("\\\n", " ").splitlines())
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


class Chroot:
    def __init__(self, base: Path, arguments: dict[str, str]) -> None:
        self.base, self.arguments, self.folder, self.user, self.size = base, arguments, "/", "0", 0
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.shell = ["/bin/sh", "-c"]
        self.host = {name: value for name, value in os.environ.items() if SETTINGS.fullmatch(name)}

    def value(self, text: str) -> str:
        known = self.arguments | self.environment
        return re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], ""), text)

    def run(self, command: str) -> None:
        start = time.monotonic()
        environment = self.host | self.arguments | self.environment | {"HOME": "/root"}
        if self.user != "0":
            environment["HOME"] = self.folder
        program = ["chroot", f"--userspec={self.user}:{self.user}", str(self.base), *self.shell]
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
            case _:
                assert name in ("FROM", "LABEL", "EXPOSE", "HEALTHCHECK", "CMD"), name

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
    options = parser.parse_args()
    for file in filter(os.path.exists, OF_THE_HOST):
        target = options.base / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    subprocess.run(["mount", "-t", "proc", "proc", str(options.base / "proc")], check=True)
    subprocess.run(["mount", "--bind", "/dev", str(options.base / "dev")], check=True)
    image = Chroot(options.base, {"EXTRA": options.extra})
    try:
        for name, rest in instructions():
            image.do(name, rest)
        for command in TRIED:
            image.run(command)
    finally:
        for name in ("dev", "proc"):
            subprocess.run(["umount", str(options.base / name)], check=False)
    print(f"image of {options.extra}: all instructions ran, and its user's commands", file=sys.stderr)


if __name__ == "__main__":
    main()
