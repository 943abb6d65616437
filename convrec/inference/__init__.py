"""Lists from a trained model: engines, stored answers, and the recommender."""
