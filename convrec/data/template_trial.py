"""Render an unknown chat template in a child process first, to find out whether it terminates.

A template is a program. Nested loops may never end, and a huge call into C, such as `10 ** (10 ** 9)`, holds Python's
lock, so that neither a thread nor a signal handler can interrupt it. The child is killed after some seconds and gets
little memory.

The child imports only jinja2 and starts in a tenth of a second, while transformers takes seconds; its environment is
that of transformers.utils.chat_template_utils. It only looks for templates that do not terminate. The parent renders
the others again, and transformers reports their errors. Run as a script, this module is the child: it reads a trial as
JSON and prints a problem, if there is one.
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
QUESTION = {"role": "user", "content": "Which films are like Heat (1995)? Not item 42, please."}
CONVERSATION = [QUESTION, {"role": "assistant", "content": "Ran (1985)\nThief (1981)"}]
THINKING: tuple[dict[str, bool], ...] = ({}, {"enable_thinking": False}, {"thinking": False})


def find_problem(template: str, special_tokens: Mapping[str, Any], seconds: float) -> str:
    """Return why a chat template does not terminate: time or memory; "" if it does, even with an error.

    Args:
        template: Jinja.
        special_tokens: the tokenizer's, by name such as `bos_token`.
        seconds: limit for a prompt and a finished turn, each with and without thinking.
    """
    return _try(json.dumps({"template": template, "special_tokens": dict(special_tokens)}, default=str), seconds)


@functools.lru_cache(maxsize=8)  # a run checks its model several times before it starts
def _try(trial: str, seconds: float) -> str:
    # By path and isolated, so that the child imports none of our packages.
    command = [sys.executable, "-I", __file__]
    try:
        process = subprocess.run(command, input=trial, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:  # run has killed the child
        return f"does not terminate within {seconds:.0f} s"
    if process.returncode < 0:
        return f"kills the process that renders it ({signal.Signals(-process.returncode).name})"
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {process.stderr.strip()}")
    return process.stdout.strip()


# ---- in the child


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
    conversations: Sequence[tuple[list[dict[str, str]], bool]] = (([QUESTION], True), (CONVERSATION, False))
    for messages, opens_answer in conversations:
        for thinking in THINKING:
            arguments = {"messages": messages, "tools": None, "documents": None, **special_tokens, **thinking}
            try:
                compiled.render(add_generation_prompt=opens_answer, **arguments)
            except MemoryError:
                raise
            except Exception:  # whatever a template raises: transformers reports it
                return


def _compile(template: str) -> Any:
    """Compile the template as transformers does; None if it is not valid Jinja."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Render the body of `{% generation %}`, in which transformers has the assistant's text."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

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
