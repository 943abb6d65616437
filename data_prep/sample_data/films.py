"""The embedded films, their generated popularity, and how well a film suits a taste.

Titles, years and genres in films.csv are facts; popularity is drawn from a Zipf-like law with a fixed seed. For a taste
with genre weights w and era e, the affinity of film f and the utility on which all sample data is based are

    affinity(f) = GENRE_WEIGHT * sum of w over f's genres + ERA_WEIGHT * [f is of e]
                  - GENRE_WEIGHT * [f has an unwanted genre] + YEARS_WEIGHT * [f is of the requested years]
    utility(f)  = affinity(f) + log popularity(f)
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

FILMS_FILE = Path(__file__).with_name("films.csv")
POPULARITY_SEED = 20  # every sample has the same popular films
ZIPF_EXPONENT = 1.3
ZIPF_SHIFT = 12.0
GENRE_WEIGHT = 5.0
ERA_WEIGHT = 2.5
YEARS_WEIGHT = 5.0  # requested years count as much as the genre

ERAS: dict[str, range] = {  # name of an era in conversations -> its years
    "classic": range(1900, 1970),
    "70s": range(1970, 1980),
    "80s": range(1980, 1990),
    "90s": range(1990, 2000),
    "2000s": range(2000, 2010),
    "recent": range(2010, 2100),
}


class Film(NamedTuple):
    """A film of the table."""

    title: str
    year: int
    genres: tuple[str, ...]

    @property
    def name(self) -> str:
        """`Title (year)`, as lists write it."""
        return f"{self.title} ({self.year})"


@dataclass(frozen=True)
class Taste:
    """The taste that a conversation states.

    Attributes:
        genres: requested genres.
        era: requested era; "" for none.
        named: rows of the films that it names.
        unwanted: genres to avoid.
        years: first and last requested year; None for no bound.
    """

    genres: tuple[str, ...]
    era: str = ""
    named: tuple[int, ...] = ()
    unwanted: tuple[str, ...] = ()
    years: tuple[int | None, int | None] = (None, None)


class FilmTable:
    """The films and the arrays for computing utilities. F films, C genres."""

    def __init__(self, films: Sequence[Film]):
        self.films = list(films)
        self.genres = sorted({genre for film in films for genre in film.genres})
        self.has_genre_FC = np.array([[genre in film.genres for genre in self.genres] for film in films], float)
        self.in_era_F = {era: np.array([film.year in years for film in films], float) for era, years in ERAS.items()}
        self.log_popularity_F = _make_log_popularity(len(films))
        self._rows_by_title: dict[str, list[int]] = {}
        for row, film in enumerate(films):
            self._rows_by_title.setdefault(film.title.casefold(), []).append(row)

    def affinity(self, taste: Taste) -> np.ndarray:
        """Return the affinity of each film, (F,).

        Args:
            taste: without genres, the genres of the films that it names count.
        """
        weights_C = np.array([genre in taste.genres for genre in self.genres], float)
        if not taste.genres and taste.named:
            named_LC = self.has_genre_FC[list(taste.named)]
            weights_C = (named_LC / named_LC.sum(1, keepdims=True)).sum(0)
        weights_C /= max(weights_C.sum(), 1.0)
        affinity_F = GENRE_WEIGHT * (self.has_genre_FC @ weights_C)
        unwanted_C = np.array([genre in taste.unwanted for genre in self.genres], float)
        affinity_F -= GENRE_WEIGHT * (self.has_genre_FC @ unwanted_C > 0)
        if taste.years != (None, None):
            first = taste.years[0] or -np.inf
            last = taste.years[1] or np.inf
            affinity_F += YEARS_WEIGHT * np.array([first <= film.year <= last for film in self.films])
        return affinity_F + ERA_WEIGHT * self.in_era_F[taste.era] if taste.era else affinity_F

    def utility(self, taste: Taste) -> np.ndarray:
        """Return the utility of each film, (F,)."""
        return self.affinity(taste) + self.log_popularity_F

    def find_namesakes(self, row: int) -> list[int]:
        """Return the rows with the film's title, including its own: seen titles have no year, so all count as seen."""
        return self._rows_by_title[self.films[row].title.casefold()]


def _make_log_popularity(count: int) -> np.ndarray:
    """Return log(1 / (rank + shift)^exponent), (F,), with shuffled ranks; the shift flattens the head."""
    ranks = np.random.default_rng(POPULARITY_SEED).permutation(count)
    return -ZIPF_EXPONENT * np.log(ranks + ZIPF_SHIFT)


@cache
def load_films() -> FilmTable:
    """Load the embedded films, once per process."""
    with FILMS_FILE.open(encoding="utf-8", newline="") as file:
        return FilmTable(
            [Film(row["title"], int(row["year"]), tuple(row["genres"].split(";"))) for row in csv.DictReader(file)]
        )
