"""The HTML file: it loads nothing from outside, escapes everything and shows the result first."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

from convrec.report.charts import Chart
from convrec.report.html import write_report
from convrec.report.page import HIT, MISS, REPEATED, SEEN, Example, GainTable, ListLine


class Page(HTMLParser):
    """Parses a page: checks the nesting of its tags and collects text, tags and attribute values."""

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

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


GAINS = GainTable("Rank-GRPO minus SFT", {"NDCG@20": {"mean": 0.02, "se": 0.007, "p": 0.003}}, "500 rows")


def write(tmp_path: Path, **changes: object) -> str:
    arguments: dict = {
        "title": "A run",
        "summary": {"Rank-GRPO": {"started from": "sft/global_step_2"}},
        "settings": {"Rank-GRPO": {"lr": 1e-4}},
        "table": [{"model": "SFT", "NDCG@20": (0.2, 0.01)}, {"model": "Rank-GRPO", "NDCG@20": (0.3, 0.01)}],
        "charts": {"Rank-GRPO": [Chart("Validation", "NDCG", {"Rank-GRPO": {0: 0.2, 10: 0.25}})]},
        "notes": [],
        "gains": [GAINS],
        "headline": "Rank-GRPO minus SFT: NDCG@20 +0.0200",
    }
    out = write_report(tmp_path / "deep" / "report.html", arguments | changes)
    return out.read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_outside_and_runs_nothing(tmp_path: Path) -> None:
    html = write(tmp_path)
    page = Page(html)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    pictures = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)" alt="([^"]*)">', html)
    assert [label for _, label in pictures] == ["Validation over steps"]
    assert all(b"</svg>" in base64.b64decode(picture) for picture, _ in pictures)
    assert page.tags.count("img") == len(pictures)
    assert not re.search(r"https?://|url\(|@import", html)
    assert 'name="viewport"' in html
    assert "@media print" in html
    assert "prefers-color-scheme: dark" in html


def test_everything_given_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"&"
    example = Example(evil, [(evil, "1999")], {evil: [ListLine(evil, (MISS,))]}, evil)
    html = write(
        tmp_path,
        title=evil,
        summary={evil: {evil: evil}},
        settings={evil: {evil: evil}},
        table=[{"model": evil, evil: evil}],
        charts={evil: [Chart(evil, evil, {evil: {0: 1.0}}, {evil: {0: 0.1}}, evil)]},
        examples=[example],
        notes=[evil],
        gains=[GainTable(evil, {evil: {"mean": 0.1, "se": 0.1, "p": 0.5}}, evil)],
        headline=evil,
        about_table=[evil],
    )
    page = Page(html)
    assert "script" not in page.tags
    # title, h1, headline, note; summary 2; gains 3; table 3 and its note; charts: heading, title, legend and caption;
    # the example's five; settings 2
    assert page.text.count(evil) == 4 + 2 + 3 + 4 + 4 + 5 + 2
    two = write(tmp_path, summary={evil: {evil: evil}, "other": {}}, settings={evil: {evil: evil}, "other": {}})
    assert "script" not in Page(two).tags
    assert Page(two).text.count(evil) == 6


def test_result_comes_first_and_best_model_is_marked(tmp_path: Path) -> None:
    html = write(tmp_path)
    text = Page(html).text
    parts = ["+0.0200", "sft/global_step_2", "500 rows", "Evaluation", "Training: Rank-GRPO", "Settings"]
    assert sorted(parts, key=text.index) == parts
    assert re.findall(r"<figure.*?<h3>([^<]*)", html) == ["Rank-GRPO minus SFT", "Validation"]
    assert re.findall(r'<td class="best">([\d.]+) <span class="se">(\S)', html) == [("0.3000", "±")]


def test_missing_numbers_and_charts_do_not_break_the_page(tmp_path: Path) -> None:
    html = write(
        tmp_path,
        table=[{"model": "a", "NDCG@5": float("nan")}, {"model": "b", "distinct items": 20}],
        charts={"SFT": []},
        gains=[GainTable("b minus a", {"NDCG@5": {"mean": 0.1, "se": float("nan"), "p": 1.0}})],
    )
    text = Page(html).text
    assert text.count("Nothing was logged yet.") == 1
    assert "nan" not in html


def test_lists_fold_and_marks_are_not_only_colours(tmp_path: Path) -> None:
    lines = [ListLine("Alien (1979)", (HIT,)), ListLine("Heat (1995)", (REPEATED, SEEN))]
    example = Example("USER: hello\n", [("Alien", "1979")], {"before": [], "after": lines}, "the best")
    html = write(tmp_path, examples=[example, example])
    text = Page(html).text
    for words in ("✓ hit", "↻ repeated", "before: 0 of 1 found", "after: 1 of 1 found"):
        assert words in text
    assert re.findall(r"<details( open)?>\s*<summary><h3>(.*?)</h3>", html) == [
        (" open", "Conversation 1: the best"),
        ("", "Conversation 2: the best"),
    ]


def test_settings_that_differ_between_runs_come_first(tmp_path: Path) -> None:
    text = Page(write(tmp_path, settings={"a": {"lr": 1, "mu": 1}, "b": {"lr": 1, "mu": 2}})).text
    assert text.index("mu") < text.index("The same in all runs") < text.index("lr")
