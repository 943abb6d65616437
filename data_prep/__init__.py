"""Commands that make data. See docs/reference/commands.md."""
