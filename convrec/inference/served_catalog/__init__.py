"""The catalog that a recommender serves, changed while lists are written."""
