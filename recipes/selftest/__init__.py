"""The checks of `recipes.gpu_check`: phases that run in separate processes with time limits."""
