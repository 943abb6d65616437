"""What `recipes.gpu_check` tries on a machine: phases, each in a process with a time limit, and their report."""
