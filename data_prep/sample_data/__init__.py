"""The sample data: generated conversations about real films."""
