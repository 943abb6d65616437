"""A run's folder, and the guard that ends what a run has started."""
