"""The stages of Remap-Reflect-Adjust, one module per stage, with a record of each run."""
