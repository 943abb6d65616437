"""A user's own conversations and catalog: files, rows, catalog, splits."""
