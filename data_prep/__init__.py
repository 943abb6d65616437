"""Commands that prepare data. See docs/reference/commands.md."""
