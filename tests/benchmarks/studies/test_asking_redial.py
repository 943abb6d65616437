"""ReDial's titles with genres of MovieLens, and demonstrations that know what their rows want."""

from pathlib import Path

from benchmarks.studies.asking_redial import genres_of, with_truth
from convrec.data.schema import TRUTH
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher


def test_trailing_articles_match_and_genreless_films_are_dropped(tmp_path: Path) -> None:
    matcher = Matcher(Catalog.from_items([("The Matrix", 1999), ("Up", 2009), ("A Bug's Life", 1998)]))
    movies = tmp_path / "movies.csv"
    films = [
        '1,"Matrix, The (1999)",Action|Sci-Fi',
        "2,Up (2009),(no genres listed)",
        "3,Bug's Life;A (1998),Animation",
    ]
    movies.write_text("\n".join(["movieId,title,genres", *films]) + "\n")
    assert genres_of(movies, matcher) == {0: ["Action", "Sci-Fi"], 2: ["Animation"]}


def test_a_demonstration_for_the_prompt_of_a_row_gets_its_truth() -> None:
    def row(text: str, name: str, truth: list[list[str]]) -> dict:
        return {"prompt": [{"role": "user", "content": text}], "sample_id": name, TRUTH: truth}

    demonstrations = [row("a", "cut_1", []), row("b", "cut_2", [])]
    found = with_truth(demonstrations, [row("b", "row_1", [["Up", "2009"]])])
    assert found == [demonstrations[0], row("b", "row_1", [["Up", "2009"]])]
