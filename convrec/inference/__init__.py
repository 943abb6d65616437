"""Lists of a trained model: engines, answers kept in a file, and the recommender."""
