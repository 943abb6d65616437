"""The folder of a run, its supervisor, and the guard that ends all processes of a run."""
