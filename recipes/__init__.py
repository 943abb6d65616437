"""Commands. See docs/reference/commands.md."""
