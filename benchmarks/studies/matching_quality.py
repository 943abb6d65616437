"""What fuzzy matching finds and what it takes wrongly, on two catalogs of films. Prints one JSON object.

python -m benchmarks.studies.matching_quality --catalog CATALOG --foreign CATALOG [--curve]

lines: by the way that a list writes an item, the share of the catalog's items that are not found again (missed), and of
foreign ones, which the catalog lacks, that are taken for one of its items (false). spellings: of the pairs of rows that
are one item in two spellings, the share that hits. similar: of misspelt titles, the share that is found; of titles with
a real word (of either catalog) in place of a similar one, of foreign titles and of titles held out of the catalog, the
share that is matched. Held out: a tenth of the titles against the others, ten times. Foreign and held-out titles are
asked for with their year and one more or less; some are a film of the catalog in another spelling, so the best rule
does not come to 0. --curve: `similar` by word guard and cutoff. Lines and `similar` also run on earlier code.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable

from rapidfuzz.distance import OSA

from benchmarks.generated import draw_misspelt, list_dated_items
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.forms import fold
from convrec.titles.item import parse_item
from convrec.titles.matching import Matcher
from convrec.titles.word_guard import WordGuard

Film = tuple[str, int]
Guard = Callable[[WordGuard, str, str, bool], bool]

SIZE = 3000  # misspelt titles, titles with another word
PARTS = 10  # held out in turn
LINES = {
    "Heat (1995)": "{title} ({year})",
    "Heat (Director's Cut) (1995)": "{title} ({note}) ({year})",
    "Heat (Another Title) (1995)": "{title} ({other}) ({year})",
    "Another Title (Heat) (1995)": "{other} ({title}) ({year})",
    "1: Heat (1995)": "1: {title} ({year})",
    "① Heat (1995)": "① {title} ({year})",
    "1️⃣ Heat (1995)": "1️⃣ {title} ({year})",
    "| 1 | Heat (1995) |": "| 1 | {title} ({year}) |",
    "| 1 | Heat | 1995 |": "| 1 | {title} | {year} |",
    "[Heat (1995)](https://...)": "[{title} ({year})](https://www.example.org/{year})",
    "[Heat](https://...) (1995)": "[{title}](https://www.example.org/Film_({year})) ({year})",
    "<b>Heat (1995)</b>": "<b>{title} ({year})</b>",
    "Heat [1995]": "{title} [{year}]",
    "Heat - 1995": "{title} - {year}",
    "Heat (US, 1995)": "{title} (US, {year})",
}
NOTES = (
    *("Director's Cut", "Extended Edition", "Final Cut", "Uncut", "Remastered", "Theatrical Version", "Restored"),
    *("TV Movie", "Miniseries", "Documentary", "Short", "Animated", "Remake", "Original", "Black and White", "Silent"),
    *("US", "UK", "USA", "French", "Japanese", "Korean", "Hindi", "Spanish with English subtitles", "English dub"),
    *("Horror", "Comedy", "Drama", "Thriller", "Science Fiction", "Romance", "Netflix", "HBO", "Criterion Collection"),
    *("Spielberg", "directed by Ang Lee", "starring Al Pacino", "Stephen King", "Studio Ghibli", "Marvel", "Pixar"),
)
# Words that are written in two ways, each way for the other.
WAYS = {"two": "2", "three": "3", "seven": "7", "twelve": "12", "thirteen": "13", "sixteen": "16", "thirty": "30"}
WAYS |= {"fifty": "50", "vs.": "versus", "v": "vs.", "dr.": "doctor", "mr.": "mister", "st.": "saint", "vol.": "volume"}
WAYS |= {way: word for word, way in WAYS.items() if way != "vs."}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--catalog", required=True)
    arguments.add_argument("--foreign", required=True, help="catalog whose items that the first one lacks are foreign")
    arguments.add_argument("--curve", action="store_true", help="`similar` by word guard and cutoff")
    arguments.add_argument("--seed", type=int, default=3407)
    options = arguments.parse_args()
    rng = random.Random(options.seed)
    catalog = load_catalog(options.catalog)
    known = {fold(title) for title in catalog.titles}
    foreign = [film for film in list_dated_items(load_catalog(options.foreign)) if fold(film[0]) not in known]
    matcher = Matcher(catalog)
    similar = Similar(matcher, foreign, rng)
    if options.curve:
        report = {
            f"{name}, {cutoff}": similar.shares(guard, cutoff)
            for name, guard in GUARDS.items()
            for cutoff in (84, 86, 88, 90, 92, 94)
        }
    else:
        report = {"lines": lines(matcher, foreign, rng), "spellings": spellings(matcher), "similar": similar.shares()}
    print(json.dumps(report, indent=2, ensure_ascii=False))


def lines(matcher: Matcher, foreign: list[Film], rng: random.Random) -> dict:
    catalog, table = matcher.catalog, {}

    def find_row(form: str, film: Film) -> int:
        written = form.format(title=film[0], year=film[1], note=rng.choice(NOTES), other=rng.choice(foreign)[0])
        item = parse_item(written)
        return matcher.identify(*item).index if item else -1

    for name, form in LINES.items():
        found = [is_title(catalog, find_row(form, film), film[0]) for film in list_dated_items(catalog)]
        false = [find_row(form, film) >= 0 for film in foreign]
        table[name] = {"missed": 1 - share(found), "false": share(false)}
    written = [
        (" ".join(WAYS.get(word.lower(), word) for word in t.split()), t, year) for t, year in list_dated_items(catalog)
    ]
    found = [is_title(catalog, find_row(LINES["Heat (1995)"], (w, y)), t) for w, t, y in written if w != t]
    table["13 for Thirteen, Doctor for Dr., ..."] = {"missed": 1 - share(found), "of": len(found)}
    return table


def spellings(matcher: Matcher) -> dict:
    by_form = defaultdict(list)
    for title, year in list_dated_items(matcher.catalog):
        by_form[fold(title), year].append((title, year))
    hits = [
        matcher.match([parse_item(f"{written[0]} ({written[1]})")], [truth], []).relevance[0]
        for films in by_form.values()
        for written in films
        for truth in films
        if written != truth
    ]
    return {"pairs, both ways": len(hits), "hits": share(hits)}


class Similar:
    """The titles asked for, drawn once, so that rules are compared on the same ones."""

    def __init__(self, matcher: Matcher, foreign: list[Film], rng: random.Random):
        self.matcher, catalog = matcher, matcher.catalog
        films = list_dated_items(catalog)
        shifted = [(title, year + shift) for title, year in foreign for shift in (0, -1, 1)]
        self.misspelt = {f"{typos} typo": draw_misspelt(films, typos, rng, SIZE) for typos in (1, 2)}
        self.others = {"other word": with_other_word(films, foreign, rng), "foreign": shifted}
        part = {form: rng.randrange(PARTS) for form in sorted({fold(title) for title, _ in films})}
        self.held_out = []
        for number in range(PARTS):
            rest = Matcher(Catalog.from_items([film for film in films if part[fold(film[0])] != number]))
            asked = [
                (title, year + shift) for title, year in films if part[fold(title)] == number for shift in (0, -1, 1)
            ]
            self.held_out.append((rest, asked))

    def shares(self, guard: Guard | None = None, cutoff: float = 90) -> dict[str, float]:
        if guard:
            WordGuard.has_other_word = guard  # type: ignore[method-assign, assignment]
        for matcher in (self.matcher, *(matcher for matcher, _ in self.held_out)):
            matcher.index.fuzzy_cutoff = matcher.index.word_guard.fuzzy_cutoff = cutoff
        catalog, result = self.matcher.catalog, {}
        for name, asked in self.misspelt.items():
            rows = [(find_row(self.matcher, written, year), title) for written, title, year in asked]
            result[f"{name} found"] = share(is_title(catalog, row, title) for row, title in rows)
            result[f"{name}, another found"] = share(
                row >= 0 and not is_title(catalog, row, title) for row, title in rows
            )
        for name, films in self.others.items():
            result[name] = share(find_row(self.matcher, *film) >= 0 for film in films)
        result["held out"] = share(find_row(matcher, *film) >= 0 for matcher, films in self.held_out for film in films)
        return result


def with_other_word(films: list[Film], foreign: list[Film], rng: random.Random) -> list[Film]:
    """Titles with one word replaced by another one or two letters off, which some title of either catalog has."""
    known = {fold(title) for title, _ in films}
    words = sorted({word for title, _ in [*films, *foreign] for word in fold(title).split() if len(word) > 2})
    drawn: dict[Film, None] = {}
    while len(drawn) < SIZE:
        title, year = rng.choice(films)
        parts = fold(title).split() or [""]
        place = rng.randrange(len(parts))
        old = parts[place]
        if len(old) < 3 or old in ("the", "and") or old.isdigit():
            continue
        letters = 1 if len(old) < 6 else 2
        near = [word for word in words if 0 < OSA.distance(word, old, score_cutoff=letters) <= letters]
        if near:
            written = " ".join([*parts[:place], rng.choice(near), *parts[place + 1 :]])
            if written not in known:
                drawn[written, year] = None
    return list(drawn)


def no_guard(guard: WordGuard, written: str, title: str, years_differ: bool) -> bool:
    return False


def vocabulary(guard: WordGuard, written: str, title: str, years_differ: bool) -> bool:
    """Refuse every word of the catalog that the title lacks."""
    return any(word in guard.catalog_words for word in set(written.split()) - set(title.split()))


GUARDS: dict[str, Guard] = {"none": no_guard, "vocabulary": vocabulary, "as it is": WordGuard.has_other_word}


def find_row(matcher: Matcher, title: str, year: int) -> int:
    return matcher.identify_written(title, year).index


def is_title(catalog: Catalog, row: int, title: str) -> bool:
    return row >= 0 and fold(catalog.titles[row]) == fold(title)


def share(flags: Iterable[bool | int]) -> float:
    flags = list(flags)
    return round(sum(flags) / len(flags), 4)


if __name__ == "__main__":
    main()
