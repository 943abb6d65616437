"""The stages of Remap-Reflect-Adjust, each a file and its record."""
