"""Whether a chat template ends, found in a process of its own before it is rendered in this one.

A template is a program. Loops that are nested may never end, and one huge call into C, `10 ** (10 ** 9)` say, holds
Python's lock: neither a thread nor a signal handler gets to end it. So it is tried in a process, which is killed after
some seconds and gets little memory.

The process imports jinja2 alone and starts in a tenth of a second, where transformers takes seconds; its environment is
that of transformers.utils.chat_template_utils. It looks for templates that do not end. Those that fail are rendered
again, here, where transformers says why. As a script this is the process: it reads a trial as JSON, and writes a
sentence where there is something to say.
"""

import functools
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

MEMORY_MIB = 512  # of address space: Python and jinja2 take 60
BEGINNING = {"role": "user", "content": "Which films are like Heat (1995)? Not item 42, please."}
ANSWERED = [BEGINNING, {"role": "assistant", "content": "Ran (1985)\nThief (1981)"}]
THINKING: tuple[dict[str, bool], ...] = ({}, {"enable_thinking": False}, {"thinking": False})


def find_problem(template: str, special_tokens: Mapping[str, Any], seconds: float) -> str:
    """Return what keeps a chat template from being rendered: time or memory; "" where it ends, with an error too.

    Args:
        template: Jinja.
        special_tokens: of the tokenizer, by name: `bos_token`.
        seconds: that it may take for a prompt and a finished turn, with thinking and without.
    """
    return _try(json.dumps({"template": template, "special_tokens": dict(special_tokens)}, default=str), seconds)


@functools.lru_cache(maxsize=8)  # a run checks its model several times before it starts
def _try(trial: str, seconds: float) -> str:
    # by path and isolated: nothing of ours is imported
    command = [sys.executable, "-I", __file__]
    try:
        done = subprocess.run(command, input=trial, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:  # it is killed
        return f"has not ended after {seconds:.0f} s"
    if done.returncode < 0:
        return f"ends the process that renders it ({signal.Signals(-done.returncode).name})"
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


# ---- in the process


def main() -> None:
    size = MEMORY_MIB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    trial = json.load(sys.stdin)
    try:
        _render_all(trial["template"], trial["special_tokens"])
    except MemoryError:
        print(f"needs more than {MEMORY_MIB} MiB of memory")


def _render_all(template: str, special_tokens: Mapping[str, Any]) -> None:
    compiled = _compile(template)
    if compiled is None:
        return
    conversations: Sequence[tuple[list[dict[str, str]], bool]] = (([BEGINNING], True), (ANSWERED, False))
    for messages, opens_answer in conversations:
        for thinking in THINKING:
            arguments = {"messages": messages, "tools": None, "documents": None, **special_tokens, **thinking}
            try:
                compiled.render(add_generation_prompt=opens_answer, **arguments)
            except MemoryError:
                raise
            except Exception:  # whatever a template raises: transformers will say so
                return


def _compile(template: str) -> Any:
    """The template as transformers compiles it; None where it is no Jinja."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, in which transformers has the assistant's text: what is inside is rendered."""

        tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    try:
        return environment.from_string(template)
    except TemplateError:
        return None


if __name__ == "__main__":
    main()
