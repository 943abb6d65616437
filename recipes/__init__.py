"""Commands. See docs/reference/commands.md."""

from convrec.errors import end_with_the_reader_of_help, need_packages

need_packages("omegaconf", "pyarrow", "torch", "verl", "ray", "typer")
end_with_the_reader_of_help()
