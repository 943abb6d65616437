"""Commands. See docs/reference/commands.md."""

from convrec.errors import need_packages

need_packages("omegaconf", "pyarrow", "torch", "verl", "ray", "typer")
