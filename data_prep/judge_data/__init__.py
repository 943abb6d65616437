"""Preferences and ratings in the forms in which data sets have them -> rows of the judges' parquet."""
