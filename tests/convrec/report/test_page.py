import math
import re
from html.parser import HTMLParser
from pathlib import Path

from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher
from convrec.report.charts import Chart
from convrec.report.page import (
    HIT,
    MISS,
    NOT_AN_ITEM,
    OUT_OF_CATALOG,
    REPEATED,
    SEEN,
    Example,
    ListLine,
    mark_list,
    table_row,
    text_table,
    write_report,
)


class Page(HTMLParser):
    """Checks nesting and gathers text, tags and attribute values."""

    void = frozenset({"meta", "br", "img", "link", "input", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.values: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def write(tmp_path: Path, **changes: object) -> str:
    arguments: dict = {
        "title": "A run",
        "settings": {"run": {"lr": 1e-4}},
        "table": [{"model": "sft", "NDCG@20": (0.2, 0.01)}, {"model": "rank_grpo", "NDCG@20": (0.3, 0.01)}],
        "charts": [Chart("Validation", "NDCG", {"NDCG@20": {0: 0.2, 10: 0.25}})],
        "examples": [],
    }
    out = write_report(tmp_path / "deep" / "report.html", **(arguments | changes))
    return out.read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_outside_and_runs_nothing(tmp_path: Path) -> None:
    html = write(tmp_path)
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?://|url\(|@import", html)
    assert 'name="viewport"' in html
    assert "@media print" in html


def test_everything_given_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"&"
    example = Example(evil, [(evil, "1999")], {evil: [ListLine(evil, (MISS,))]})
    html = write(
        tmp_path,
        title=evil,
        settings={evil: {evil: evil}},
        table=[{"model": evil, evil: evil}],
        charts=[Chart(evil, evil, {evil: {0: 1.0}})],
        examples=[example],
        notes=[evil],
    )
    page = Page(html)
    assert "script" not in page.tags
    # title and h1, note, column and cells of the table, chart and legend, settings, and the example's five
    assert page.text.count(evil) >= 12
    two = write(tmp_path, settings={evil: {evil: evil}, "other": {}})
    assert "script" not in Page(two).tags
    assert Page(two).text.count(evil) >= 3


def test_the_best_model_of_a_row_is_marked_and_errors_are_shown(tmp_path: Path) -> None:
    html = write(tmp_path)
    best = re.findall(r'<td class="best">([\d.]+)', html)
    assert best == ["0.3000"]
    assert "±" in Page(html).text


def test_missing_numbers_and_empty_curves_do_not_break_the_page(tmp_path: Path) -> None:
    html = write(
        tmp_path,
        table=[{"model": "a", "NDCG@5": float("nan")}, {"model": "b", "distinct items": 20}],
        charts=[
            Chart("a", "b", {}, smooth=True),
            Chart("c", "d", {"rank 1": {3: float("nan")}, "rank 2": {}}, smooth=True),
        ],
    )
    text = Page(html).text
    assert text.count("Nothing was logged.") == 2
    one_conversation = Chart("e", "f", {"a": {0: 0.2, 5: 0.3}}, errors={"a": {0: math.nan, 5: math.nan}})
    assert "nan" not in write(tmp_path, charts=[one_conversation])
    assert "nan" not in text
    lines = [Chart("a", "b", {"one point": {7: 0.0}}), Chart("c", "d", {"flat": {0: 0.3, 5: 0.3}}, from_zero=True)]
    Page(write(tmp_path, table=[], charts=lines))


def test_a_curve_is_drawn_through_its_values(tmp_path: Path) -> None:
    """y falls as the value rises: 0.20 at step 0 is the lowest tick, 0.25 at step 10 the highest; x spans the plot."""
    html = write(tmp_path)
    (points,) = re.findall(r'<polyline class="curve" points="([^"]+)"', html)
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in points.split())
    assert (x0, x1) == (52, 468)
    assert (y0, y1) == (260, 12)


def test_a_small_change_is_drawn_small_and_an_error_as_a_bar(tmp_path: Path) -> None:
    """The axis covers [0.95, 1] in steps of 0.01; errors widen it: 0.2 - 0.1 = 0.1 is its foot, 0.3 + 0.1 its head."""
    small = Chart("In catalog", "share", {"a": {0: 1.0, 10: 0.999}}, span=0.05)
    errors = Chart("NDCG", "NDCG", {"a": {0: 0.2, 10: 0.3}}, errors={"a": {0: 0.1, 10: 0.1}})
    html = write(tmp_path, charts=[small, errors])
    first, second = re.findall(r'<polyline class="curve" points="([^"]+)"', html)
    assert first == "52.0,12.0 468.0,17.0"  # 0.001 / 0.05 of 248 units
    assert second == "52.0,177.3 468.0,94.7"
    assert re.findall(r'class="error" x1="([\d.]+)" x2="\1" y1="([\d.]+)" y2="([\d.]+)"', html) == [
        ("52.0", "260.0", "94.7"),
        ("468.0", "177.3", "12.0"),
    ]
    assert html.count("bars of one standard error") == 1


def test_the_axis_of_steps_begins_at_0_and_ends_at_the_last_one(tmp_path: Path) -> None:
    html = write(tmp_path, charts=[Chart("Loss", "nats", {"a": {step: 1.0 / step for step in range(1, 104)}})])
    assert re.findall(r'text-anchor="middle">(\d+)</text>', html) == ["0", "20", "40", "60", "80", "103"]


def test_the_lines_of_many_runs_look_different(tmp_path: Path) -> None:
    runs = {f"run {number}": {0: float(number)} for number in range(36)}
    html = write(tmp_path, charts=[Chart("NDCG", "NDCG", runs)])
    assert len(set(re.findall(r'<polyline .*?(stroke="[^"]+" stroke-dasharray="[^"]*")', html))) == 36


def test_many_models_are_rows_and_few_are_columns(tmp_path: Path) -> None:
    def corners(count: int) -> list[str]:
        table = [{"model": f"m{number}", "NDCG@5": 0.1, "in catalog": 1.0} for number in range(count)]
        return re.findall(r'<th scope="col">([^<]+)</th>', write(tmp_path, table=table))

    assert corners(3) == ["m0", "m1", "m2"]
    assert corners(6) == ["NDCG@5", "in catalog"]


def test_lines_are_marked_with_what_became_of_them() -> None:
    matcher = Matcher(Catalog.from_items([("Alien", 1979), ("Heat", 1995), ("Toy Story", 1995)]))
    text = "Toy Story (1995)\nAlien (1979)\nAlien (1979)\nNo Such Film (2001)\n\nSorry!\nHeat (1995)\nAlien (1979)"
    lines = mark_list(text, matcher, [("Alien", "1979")], ["Toy Story"], num_items=6)
    assert [line.marks for line in lines] == [
        (SEEN,),
        (HIT,),
        (REPEATED,),
        (OUT_OF_CATALOG,),
        (NOT_AN_ITEM,),
        (MISS,),
    ]


def test_a_list_with_another_delimiter_is_split_there() -> None:
    matcher = Matcher(Catalog.from_items([("Alien", 1979), ("Heat", 1995)]))
    lines = mark_list("Heat (1995); Alien (1979)", matcher, [("Alien", "1979")], [], delimiter=";")
    assert [(line.text, line.marks) for line in lines] == [("Heat (1995)", (MISS,)), ("Alien (1979)", (HIT,))]


def test_marks_are_words_and_symbols_not_only_colours(tmp_path: Path) -> None:
    lines = [ListLine("Alien (1979)", (HIT,)), ListLine("Heat (1995)", (REPEATED, SEEN))]
    example = Example("USER: hello\n", [("Alien", "1979")], {"before": [], "after": lines})
    text = Page(write(tmp_path, examples=[example])).text
    assert "✓ hit" in text
    assert "↻ repeated" in text
    assert "before: 0 of 1 found" in text
    assert "after: 1 of 1 found" in text


def test_settings_that_differ_between_runs_come_first(tmp_path: Path) -> None:
    text = Page(write(tmp_path, settings={"a": {"lr": 1, "mu": 1}, "b": {"lr": 1, "mu": 2}})).text
    assert text.index("mu") < text.index("The same in all runs") < text.index("lr")


def test_the_terminal_table_is_aligned_and_shows_errors() -> None:
    summary = {
        "recall@5": {"mean": 0.125, "se": 0.01},
        "ndcg@5": {"mean": 0.0625, "se": math.nan},
        "catalog_hit_ratio": 0.5,
        "distinct_items": 1234,
        "list_length_errors": 2,
        "n": 40,
        "repeats_per_list": 0.25,
    }
    text = text_table([table_row("popularity", summary, [5]), table_row("sft", summary, [5])])
    assert text.splitlines() == [
        "                       popularity             sft",
        "Recall@5           0.1250 ±0.0100  0.1250 ±0.0100",
        "NDCG@5                  0.0625 ±–       0.0625 ±–",
        "in catalog                 0.5000          0.5000",
        "distinct items              1,234           1,234",
        "wrong list length         2 of 40         2 of 40",
        "repeats in a list          0.2500          0.2500",
    ]
