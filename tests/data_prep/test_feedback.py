"""`convrec data feedback`: the log of the service becomes the tables of `convrec data own`."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.data.schema import conversation_text
from convrec.data.validation import validate_rl_table
from data_prep.feedback import main
from data_prep.own import main as data_own
from recipes.serving.feedback import FILES, FeedbackLog
from recipes.serving.schema import FeedbackEvent

FILMS = [("a", "Alien", 1979, None), ("h", "Heat", 1995, None), ("r", "Ran", 1985, None), ("m", "M", 1931, None)]
SONGS = [("s1", "Hello", None, "Adele"), ("s2", "Hello", None, "Lionel Richie"), ("s3", "7", None, None)]
SAID = "USER: Anything grim?\nSYSTEM: Sure\nUSER: ASSISTANT: is no turn\n USER: nor is this\n"
Films = Sequence[tuple[str, str, int | None, str | None]]


class Shop:
    """A service's log, the served catalog, and the tables that the command makes from them."""

    def __init__(self, folder: Path, items: Films, with_ids: bool = True) -> None:
        self.state, self.catalog, self.out = folder / "state", folder / "catalog.jsonl", folder / "out"
        names = ("item_id", "title", "year", "display")
        rows = [dict(zip(names[not with_ids :], item[not with_ids :], strict=True)) for item in items]
        self.catalog.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert data_own_catalog(self.catalog, folder)
        self.served = folder / "served" / "catalog.parquet"
        self.items = {item[0] if with_ids else str(row): item for row, item in enumerate(items)}
        self.log = FeedbackLog(self.state, file_bytes=1200)  # some lines a file

    def shows(self, number: int, *ids: str, said: Any = SAID, seen: Sequence[str | int] = ()) -> str:
        shown = [
            {"item_id": i, "title": f"{title} [{display}]" if display else title, "year": year}
            for i in ids
            for _, title, year, display in [self.items[i]]
        ]
        list_id = self.log.make_list_id()
        about = {"list_id": list_id, "model": "m", "model_version": "1", "items": shown}
        self.log.add_list({"conversation": said, "seen": list(seen)}, about)
        return list_id

    def happens(self, list_id: str, item_id: str, event: str = "click") -> None:
        asyncio.run(self.log.add_event(FeedbackEvent(list_id=list_id, item_id=item_id, event=event)))  # type: ignore[arg-type]

    def convert(self, *more: str) -> int:
        return main(["--state", str(self.state), "--catalog", str(self.served), "--out", str(self.out), *more])

    def table(self, name: str = "train") -> list[dict[str, Any]]:
        return pq.read_table(self.out / f"{name}.parquet").to_pylist()


def data_own_catalog(catalog: Path, folder: Path) -> bool:
    """Whether `convrec data own` has made catalog.parquet, as a served one is made."""
    rows = folder / "rows.jsonl"
    title, year = (json.loads(catalog.read_text().splitlines()[-1]).get(name) for name in ("title", "year"))
    rows.write_text(json.dumps({"conversation": "USER: x", "ground_truth": [[title, year] if year else [title]]}))
    return data_own(["--conversations", str(rows), "--catalog", str(catalog), "--out", str(folder / "served")]) == 0


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, FILMS)


def test_a_clicked_list_is_a_row_with_what_was_shown(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    first = shop.shows(1, "a", "h", "r", seen=["m", "Up (2009)", "Unknown, maybe; not"])
    for other in range(2, 9):
        shop.shows(other, "a")  # nothing becomes of these
    shop.happens(first, "r", "purchase")
    shop.happens(first, "h")
    shop.log = FeedbackLog(shop.state, file_bytes=1200)  # started again
    shop.happens(first, "h")  # by a client that asks again
    shop.happens(first, "a", "impression")
    shop.happens(first, "a")
    shop.happens(first, "a", "dislike")
    shop.happens(shop.log.make_list_id(), "a")
    assert len(list(shop.state.glob(FILES))) > 2  # a list and its events are in files of their own
    capsys.readouterr()
    assert shop.convert("--num-items", "3") == 0
    (row,) = shop.table()
    assert row["groundtruth_with_release_year"] == [["Ran", "1985"], ["Heat", "1995"]]
    assert row["exposure"] == [["Alien", "1979"], ["Heat", "1995"], ["Ran", "1985"]]
    assert row["seen_titles"] == ["M", "Up", "Unknown, maybe; not"]
    assert conversation_text(row) == SAID
    assert row["id"] == row["sample_id"] == first
    assert validate_rl_table(shop.out / "train.parquet") == (1, [])
    printed = capsys.readouterr().out
    assert "7 lists from which nothing was clicked, liked or purchased left out" in printed
    assert "1 events for lists that are not in the log left out" in printed
    (again,) = [json.loads(line) for line in Path(f"{shop.out}.jsonl").read_text().splitlines()]
    assert again["exposure"] == [["Alien", 1979], ["Heat", 1995], ["Ran", 1985]]  # `convrec data own` takes it as it is
    # what its own rows have
    assert set(row) == {*pq.read_schema(shop.served.parent / "train.parquet").names}


def test_an_event_for_an_item_that_was_not_shown_is_counted(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shown = shop.shows(1, "a")
    shop.happens(shown, "a", "like")
    shop.log = FeedbackLog(shop.state)  # the service was started again, and does not know the list
    shop.happens(shown, "m")
    assert shop.convert() == 0
    assert shop.table()[0]["groundtruth_with_release_year"] == [["Alien", "1979"]]
    assert "1 events for items that are not in their list left out" in capsys.readouterr().out


def test_the_last_rows_by_time_are_validation(shop: Shop) -> None:
    shown = [shop.shows(number, "a", said=f"Film number {number} of my life") for number in range(10)]
    for list_id in shown:
        shop.happens(list_id, "a")
    assert shop.convert("--validation-share", "0.2") == 0
    assert [row["id"] for row in shop.table()] == shown[:8]
    assert [row["id"] for row in shop.table("validation")] == shown[8:]


@pytest.mark.parametrize("with_ids", [True, False])
def test_items_without_years_that_share_a_title_stay_apart(tmp_path: Path, with_ids: bool) -> None:
    shop = Shop(tmp_path, SONGS, with_ids)
    adele, richie, number = ("s1", "s2", "s3") if with_ids else ("0", "1", "2")
    shop.happens(shop.shows(1, adele, richie, number, seen=[number if with_ids else 2, "7"]), richie)
    assert shop.convert() == 0
    (row,) = shop.table()
    assert row["groundtruth_with_release_year"] == [["Hello [Lionel Richie]", ""]]
    assert row["exposure"] == [["Hello [Adele]", ""], ["Hello [Lionel Richie]", ""], ["7", ""]]
    assert row["seen_titles"] == ["7", "7"]


def test_problems_are_reported_before_anything_is_written(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*more: str) -> str:
        capsys.readouterr()
        assert shop.convert(*more) == 2
        return capsys.readouterr().err

    printed = refused()
    assert str(shop.state) in printed
    assert "[feedback.missing-log]" in printed
    clicked = shop.shows(1, "a")
    assert "[feedback.no-positive-event]" in refused()
    shop.happens(clicked, "a")
    file = next(shop.state.glob(FILES))
    whole = file.read_text()
    file.write_text(whole + '{"list_id": "list-')  # the disk was full
    assert f"{file}: line 3: " in refused()
    assert not shop.out.exists()
    assert shop.convert("--skip-damaged", "0.5") == 0
    file.write_text(whole + "{}\n")
    Path(f"{shop.out}.jsonl").unlink()
    assert "line 3: neither a list nor an event" in refused()
    file.write_text(whole)
    assert "[output.already-there]" in refused()
    assert shop.convert("--overwrite") == 0
    Path(f"{shop.out}.jsonl").write_text("mine")
    printed = refused()
    assert f"{shop.out}.jsonl" in printed
    assert "[feedback.already-there]" in printed
