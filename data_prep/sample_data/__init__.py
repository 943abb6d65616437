"""The sample data: made-up conversations about real films."""
