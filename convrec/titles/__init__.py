"""Titles: how an item is written, the catalog, and which item a written title is."""
