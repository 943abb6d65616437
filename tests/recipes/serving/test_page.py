"""The chat page in a real browser, over a service in this process whose model needs no engine."""

import asyncio
import json
import re
import threading
import time

import pytest
import uvicorn
from playwright.sync_api import expect

from recipes.serving.errors import Refused

KEY = "k" * 32
expect.set_options(timeout=30_000)


@pytest.fixture
def address(service, request, tmp_path):
    """Where the page is served; the parameter, if any, has options of the service."""
    options = dict(getattr(request, "param", {}))
    if options.get("feedback"):
        options["feedback"] = str(tmp_path / "feedback")
    server = uvicorn.Server(uvicorn.Config(service(**options), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@pytest.fixture
def page(browser, address):
    """The page, opened; an error in its script, or a request to elsewhere, fails the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else wrong.append(request.url)
    )
    page.goto(address)
    page.evaluate("() => ready")  # the models are known, and the placeholder has a title of theirs
    page.locator(":focus").wait_for()  # autofocus may come after the load
    yield page
    context.close()
    assert wrong == []


def titles(page):
    return page.locator(".answer").last.locator(".title > span:first-child").all_inner_texts()


def test_keyboard_only_conversation_leaves_out_marked_items(page, films):
    expect(page.locator("#about")).to_have_text("films, 5 items")
    assert page.locator("#about").get_attribute("title") == "version films-1"
    page.keyboard.type("something tense")  # the field has the focus
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    page.get_by_role("button", name="Send").wait_for()
    assert titles(page) == ["Alien", "Heat", "Ran", "<img src=x onerror=alert(1)>", "Amélie"]
    assert page.locator(".answer img").count() == 0  # a title is text
    expect(page.locator(".answer .year").first).to_have_text("(1980)")

    page.get_by_role("button", name="Seen: Alien (1980)").focus()
    page.keyboard.press("Space")
    for _ in range(4):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Like: Heat
    for _ in range(4):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Not for me: Ran
    assert page.locator("[aria-pressed=true]").count() == 3
    page.get_by_label("Items of the last list may come again").focus()
    page.keyboard.press("Space")
    page.locator("#text").focus()
    page.keyboard.press("Enter")  # tastes alone are something to say
    page.locator(".answer").nth(1).locator("li").nth(1).wait_for()
    page.get_by_role("button", name="Send").wait_for()
    assert titles(page) == ["<img src=x onerror=alert(1)>", "Amélie"]
    asked = films.asked[-1]
    assert sorted(asked["seen"]) == [0, 1, 2]  # a text could be a title
    assert (asked["liked"], asked["why"]) == ([1], True)
    assert asked["conversation"] == [
        {"role": "user", "content": "something tense"},
        {
            "role": "assistant",
            "content": "Alien (1980)\nHeat (1981)\nRan (1982)\n<img src=x onerror=alert(1)> (1983)\nAmélie (1984)",
        },
        {"role": "user", "content": "I liked Heat (1981).\nI did not like Ran (1982)."},
    ]

    page.get_by_role("button", name="Undo: Alien (1980) is seen").click()
    page.keyboard.type("and older ones")
    page.keyboard.press("Enter")
    page.locator(".answer").nth(2).locator("li").nth(2).wait_for()
    assert titles(page)[0] == "Alien"
    assert films.asked[-1]["conversation"][-1]["content"] == "and older ones"  # the like was told before

    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".answer, #marks li").count() == 0


def test_page_shows_clean_titles_while_model_reads_raw_ones(page, films):
    films.items["0"] = ("Alien [BK-100334-B]", 1980)
    page.keyboard.type("something tense")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    page.get_by_role("button", name="Send").wait_for()
    assert titles(page)[0] == "Alien"
    page.get_by_role("button", name="Like: Alien (1980)").click()
    page.get_by_label("Items of the last list may come again").check()
    page.locator("#text").focus()
    page.keyboard.press("Enter")
    page.locator(".answer").nth(1).locator("li").nth(3).wait_for()
    assert "BK-100334-B" not in page.locator("body").inner_text()
    _, told, said = films.asked[-1]["conversation"]
    assert told["content"].startswith("Alien [BK-100334-B] (1980)\n")
    assert said["content"] == "I liked Alien (1980)."


def test_question_is_answered_by_a_click_and_reaches_the_model(page, films):
    films.asks = True
    page.keyboard.type("a film")
    page.keyboard.press("Enter")
    page.locator(".quick").nth(2).wait_for()
    expect(page.locator(".question")).to_have_text("Which genre?")
    assert page.locator(".quick").all_inner_texts() == ["Horror", "<b>War", "I don't mind"]
    page.get_by_role("button", name="Send").wait_for()
    page.reload()  # the question is kept, and its answers
    page.get_by_role("button", name="Horror").click()
    page.locator(".answer li").nth(4).wait_for()
    assert page.locator(".quick").count() == 0
    asked = films.asked[-1]
    assert asked["may_ask"]
    assert [(turn["role"], turn["content"]) for turn in asked["conversation"]] == [
        ("user", "a film"), ("assistant", "Which genre?"), ("user", "Horror.")
    ]  # fmt: skip


def test_of_a_long_conversation_the_newest_turns_are_sent(page, films):
    page.evaluate("models[0].max_turns = 4")
    page.get_by_label("Items of the last list may come again").check()
    page.locator("#text").focus()
    for number, text in enumerate(("first", "second", "third")):
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.locator(".answer").nth(number).locator("li").nth(4).wait_for()
        page.get_by_role("button", name="Send").wait_for()
    turns = films.asked[-1]["conversation"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert (turns[0]["content"], turns[2]["content"]) == ("second", "third")


SHOP = {"price": 9.99, "genres": ["space", "horror"], "in_stock": True, "colour": None}


@pytest.mark.parametrize("address", [{"show": ["picture", "link", *SHOP], "feedback": True}], indirect=True)
def test_item_shows_shop_columns_and_feedback_is_recorded(page, address, films, tmp_path):
    films.columns = {"picture": f"{address}cover.svg", "link": f"{address}item", **SHOP}
    cover = '<svg xmlns="http://www.w3.org/2000/svg" width="30" height="40"><rect width="30" height="40"/></svg>'
    page.route("**/cover.svg", lambda route: route.fulfill(body=cover, content_type="image/svg+xml"))
    films.why = "Popular: 7 people asked for it."
    page.keyboard.type("something tense")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    first = page.locator(".answer li").first
    expect(first.locator(".columns")).to_have_text("price: 9.99 · genres: space, horror · in stock")
    expect(first.locator(".why")).to_have_text(films.why)
    assert first.locator("img").bounding_box()["width"] == 48
    expect(page.locator(".answer img").first).to_have_js_property("naturalWidth", 30)
    expect(first.locator(".id")).to_be_hidden()
    page.get_by_label("Show ids").check()
    expect(first.locator(".id")).to_have_text("0")

    page.get_by_role("button", name="Like: Alien (1980)").click()
    page.get_by_role("button", name="Not for me: Heat (1981)").click()
    with page.context.expect_page():  # a tab of its own
        page.get_by_role("link", name="Ran").click()
    (file,) = (tmp_path / "feedback").glob("feedback-*.jsonl")
    deadline = time.monotonic() + 10
    while (text := file.read_text()).count('"event"') < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    events = [line for line in map(json.loads, text.splitlines()) if "event" in line]
    assert [(event["item_id"], event["event"]) for event in events] == [("0", "like"), ("1", "dislike"), ("2", "click")]


def test_message_sent_before_the_page_is_ready_is_answered_once(page, films):
    held = []
    page.route("**/v1/catalog/items**", lambda route: held.append(route))
    page.reload()
    page.locator("#text").fill("something tense")
    page.keyboard.press("Enter")
    while not held:  # the service may be slow to describe its models
        page.wait_for_timeout(50)
    page.wait_for_timeout(300)  # a list would be there by now
    held[0].continue_()
    page.locator(".answer li").nth(4).wait_for()
    page.get_by_role("button", name="Send").wait_for()
    expect(page.locator("#text")).to_have_attribute("placeholder", "Something like Alien")
    assert page.locator(".user").all_inner_texts() == ["something tense"]
    assert len(titles(page)) == page.locator(".answer li").count() == 5


@pytest.mark.parametrize("address", [{"show": ["picture"]}], indirect=True)
def test_a_picture_that_is_not_there_leaves_no_hole(page, address, films):
    films.columns = {"picture": f"{address}gone.png"}
    page.keyboard.type("something tense")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    expect(page.locator(".answer img")).to_have_count(0)


def test_page_runs_no_catalog_scripts_and_links_only_to_http(page, films):
    films.columns = {
        "picture": "javascript:alert(1)",
        "link": "javascript:alert(1)",
        "note": "<b onclick=alert(1)>x</b>",
    }
    page.keyboard.type("something tense")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    assert page.locator(".answer a, .answer img, .answer b").count() == 0
    expect(page.locator(".columns").first).to_have_text("note: <b onclick=alert(1)>x</b>")


def test_conversation_survives_reload_and_items_do_not_repeat(page, films):
    assert page.locator("#text").get_attribute("placeholder") == "Something like Alien"
    page.locator("#k").select_option("5")
    films.items |= {"5": ("Solaris", 1972)}
    page.locator("#text").fill("something tense")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    page.get_by_role("button", name="Send").wait_for()
    page.get_by_role("button", name="Like: Heat (1981)").click()
    page.reload()
    page.locator(".answer li").nth(4).wait_for()
    expect(page.locator(".user")).to_have_text("something tense")
    assert page.get_by_role("button", name="Like: Heat (1981)").get_attribute("aria-pressed") == "true"
    page.locator("#text").fill("and now?")
    page.keyboard.press("Enter")
    page.locator(".answer").nth(1).locator("li").first.wait_for()
    page.get_by_role("button", name="Send").wait_for()
    assert titles(page) == ["Solaris"]
    assert [turn["content"] for turn in films.asked[-1]["conversation"]][::2] == [
        "something tense",
        "and now?\nI liked Heat (1981).",
    ]
    page.get_by_role("button", name="New conversation").click()
    page.reload()
    page.get_by_text("films, 6 items").wait_for()
    assert page.locator(".answer, #marks li").count() == 0


def test_screen_reader_hears_each_item_and_its_actions(page, films):
    films.why = "It shares horror with Ran."
    page.keyboard.type("something tense")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    heard = page.locator(".answer li").first.aria_snapshot()
    assert heard.splitlines() == [
        "- listitem:",
        "  - text: 1 Alien (1980)",
        "  - paragraph: It shares horror with Ran.",
        *(f"  - 'button \"{name}: Alien (1980)\"': {name}" for name in ("Seen", "Like", "Not for me")),
    ]
    named = page.locator("body").aria_snapshot()
    for name in ('log "Conversation"', 'textbox "Your message"', 'checkbox "Show ids"', 'combobox "Items"'):
        assert name in named


def test_items_appear_one_by_one_and_escape_stops(page, films):
    films.wait = asyncio.Event()
    page.keyboard.type("slow")
    page.keyboard.press("Enter")
    page.locator(".answer li").first.wait_for()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert titles(page) == ["Alien"]
    page.keyboard.press("Escape")
    page.get_by_role("alert").wait_for()
    expect(page.get_by_role("alert")).to_have_text("Stopped.")
    assert page.locator("#text").input_value() == "slow"


def test_refusal_is_shown_and_the_message_can_be_resent(page, films):
    films.refusal = Refused(429, "3 requests are being answered <b>", retry_after=1)
    page.keyboard.type("now")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    expect(page.get_by_role("alert")).to_have_text("3 requests are being answered <b>")
    films.refusal = None
    page.keyboard.press("Enter")
    page.locator(".answer").nth(1).locator("li").nth(4).wait_for()


def test_a_list_that_failed_is_tried_again_by_a_click(page, films):
    films.refusal = Refused(503, "it starts again: ask again", retry_after=1)
    page.keyboard.type("now")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    films.refusal = None
    page.get_by_role("button", name="Try again").click()
    page.locator(".answer li").nth(4).wait_for()
    assert page.locator(".user").all_inner_texts() == ["now"]
    assert page.get_by_role("alert").count() == 0
    assert page.locator("#text").input_value() == ""


@pytest.mark.parametrize("address", [{"key": KEY}], indirect=True)
def test_page_asks_for_the_key_and_reports_a_wrong_one(page):
    page.get_by_text("The service asks for a key.").wait_for()
    expect(page.locator("#form")).to_be_hidden()  # nothing can be asked yet
    for key, words in (("x" * 32, "The service does not take this key."), (KEY, "films, 5 items")):
        page.get_by_label("This service asks for a key").fill(key)
        page.keyboard.press("Enter")
        expect(page.locator("#about")).to_have_text(words)
        if key != KEY:
            expect(page.get_by_role("alert")).to_have_text(words)  # beside the field
    expect(page.get_by_label("This service asks for a key")).to_be_hidden()
    expect(page.locator("#text")).to_be_focused()


@pytest.mark.parametrize("address", [{"key": KEY}], indirect=True)
def test_on_a_small_screen_the_key_s_field_says_what_it_is(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_text("The service asks for a key.").wait_for()
    expect(page.locator("label[for=key]")).to_be_visible()


FILTERS = [
    {"label": "In stock", "where": {"in_stock": True}},
    {"label": "Below 20", "where": {"price": {"max": 20}}},
]


@pytest.mark.parametrize("address", [{"filters": FILTERS}], indirect=True)
def test_operator_filters_are_chips_that_narrow_the_next_list(page, films):
    page.get_by_label("Items of the last list may come again").check()
    expected = (
        (["In stock", "Below 20"], {"in_stock": True, "price": {"max": 20}}),
        (["In stock"], {"price": {"max": 20}}),
        (["Below 20"], None),
    )
    for number, (pressed, where) in enumerate(expected):
        for label in pressed:
            page.get_by_role("button", name=label).click()
        page.locator("#text").fill("a film")
        page.keyboard.press("Enter")
        page.locator(".answer").nth(number).locator("li").nth(4).wait_for()
        page.get_by_role("button", name="Send").wait_for()
        assert films.asked[-1]["where"] == where


@pytest.mark.parametrize("address", [{"show": ["price"]}], indirect=True)
def test_values_are_written_as_people_write_them(page, films):
    films.columns = {
        "price": 2210, "in_stock": False, "on_sale": True, "released": "2024-03-01", "added": "2024-03-01T00:00:00",
        "pages": 12345, "score": 0.25, "isbn": "2024-03", "tags": ["a", "b"], "colour": None,
    }  # fmt: skip
    page.keyboard.type("a film")
    page.keyboard.press("Enter")
    assert page.locator(".columns").first.inner_text().split(" · ") == [
        "price: 2,210.00", "not in stock", "on sale", "released: 1 Mar 2024", "added: 1 Mar 2024", "pages: 12,345",
        "score: 0.25", "isbn: 2024-03", "tags: a, b",
    ]  # fmt: skip


def test_items_of_one_title_differ_on_sight(page, films):
    films.items |= {"0": ("Hello [Adele]", 1980), "1": ("Hello [Lionel Richie]", 1980), "2": ("Ran [BK-1]", 1982)}
    page.keyboard.type("a song")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    shown = page.locator(".answer .title").all_inner_texts()
    assert shown[:3] == ["Hello [Adele] (1980)", "Hello [Lionel Richie] (1980)", "Ran (1982)"]


@pytest.mark.parametrize("address", [{"filters": FILTERS}], indirect=True)
def test_small_screen_shows_five_items_even_with_marks_open(page, films):
    page.set_viewport_size({"width": 390, "height": 844})
    films.items |= {f"more-{number}": (f"Film Number {number}", 2000) for number in range(20)}
    films.items["2"] = ("Everything Everywhere All at Once", 2022)  # two lines
    films.why = "Crime, Drama and War, as Heat, which you liked."
    films.columns = {"price": 9.5, "in_stock": True, "genres": ["Science Fiction", "Horror", "Thriller"]}
    page.keyboard.type("a film")
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(9).wait_for()
    page.get_by_role("button", name="Send").wait_for()
    for name in ("Like: Heat (1981)", "Seen: Alien (1980)", "Not for me: Everything Everywhere All at Once (2022)"):
        page.get_by_role("button", name=name).click()
    page.locator("#marks-box").evaluate("box => { box.open = true; }")
    page.locator(".user").last.evaluate("bubble => bubble.scrollIntoView({ block: 'start' })")
    seen = """lines => {
        const log = document.getElementById("log").getBoundingClientRect();
        const isSeen = (box) => box.top >= log.top - 1 && box.bottom <= log.bottom + 1;
        return lines.map((line) => isSeen(line.getBoundingClientRect()));
    }"""
    assert page.locator(".answer li").evaluate_all(seen)[:5] == [True] * 5


def test_docs_fit_a_small_screen_and_table_heads_do_not_wrap(page, address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}docs")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    line = page.locator("th").first.evaluate("cell => parseFloat(getComputedStyle(cell).lineHeight)")
    heights = page.locator("th").evaluate_all("cells => cells.map((cell) => cell.getBoundingClientRect().height)")
    assert len(heights) > 20
    assert max(heights) < 2 * line


def brightness(colour):
    """Relative luminance of WCAG 2, from rgb(r, g, b)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_can_be_read(page, films, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    films.why = "It shares horror with Ran, which you liked."
    page.keyboard.type("a film with a very long description " * 5)
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    page.get_by_role("button", name="Like: Heat (1981)").click()
    page.get_by_role("button", name="Seen: Ran (1982)").click()
    page.get_by_role("button", name="Not for me: Alien (1980)").click()
    page.locator("#marks-box").evaluate("box => { box.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for selector in ("#send", "#text", "#restart", "#marks li >> nth=0"):
        box = page.locator(selector).bounding_box()
        assert box, selector
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= width, selector
        assert box["y"] + box["height"] <= 800, selector
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (brightness(paper) > 0.5) == (scheme == "light")
    for selector in (
        ".title",
        ".year",
        ".why",
        ".note",
        "#send",
        ".liked[aria-pressed=true]",
        ".seen[aria-pressed=true]",
        ".disliked[aria-pressed=true]",
    ):
        colours = "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
        text, ground = page.locator(selector).first.evaluate(colours)
        light = sorted((brightness(text), brightness(paper if ground == "rgba(0, 0, 0, 0)" else ground)))
        assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5, (selector, text, ground)  # WCAG 2's AA
