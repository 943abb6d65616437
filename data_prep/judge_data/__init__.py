"""Convert preferences and ratings from the formats of public data sets to rows of the judges' parquet."""
