"""Commands that make data. See docs/reference/commands.md."""

from convrec.errors import need_packages

need_packages("numpy", "pyarrow")
