"""What `recipes.gpu_check` tries on a machine: phases, in processes of their own with a time limit each."""
