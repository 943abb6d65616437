"""Commands that make data. See docs/reference/commands.md."""

from convrec.errors import end_with_the_reader_of_help, need_packages

need_packages("numpy", "pyarrow")
end_with_the_reader_of_help()
