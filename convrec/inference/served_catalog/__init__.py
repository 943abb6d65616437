"""The catalog that a recommender serves, which can change while lists are written."""
