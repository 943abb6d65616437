"""Films whose titles are easily confused."""

FILMS = [
    ("The Matrix", 1999),
    ("Moulin Rouge!", 2001),
    ("Toy Story", 1995),
    ("Toy Story 2", 1999),
    ("Toy Story 3", 2010),
    ("Rocky", 1976),
    ("Rocky II", 1979),
    ("Rocky III", 1982),
    ("Harry Potter and the Deathly Hallows: Part 1", 2010),
    ("Harry Potter and the Deathly Hallows: Part 2", 2011),
    ("Amélie", 2001),
    ("Pride & Prejudice", 2005),
    ("But I'm a Cheerleader", 1999),
    ("20,000 Leagues Under the Sea", 1954),
    ("Mother!", 2017),
    ("Mother", 2017),
    ("Mother", 2009),
    ("The Outsiders", 1983),
    ("The Stranger", 2020),
    ("The Stranger", 2022),
    ("Heat", 1995),
    ("$", 1971),
    ("The Wall", 201),
]
ROW = {film: row for row, film in reversed(list(enumerate(FILMS)))}
