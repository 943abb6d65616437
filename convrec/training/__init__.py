"""The seam to verl: trainers, loss, worker, datasets, liveness, tracking."""
