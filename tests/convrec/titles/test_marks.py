"""Entities and other replacements for special characters."""

import pytest

from convrec.titles.marks import decode_marks


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("AT&amp;T &lt;3", "AT&T <3"),
        ("Schindler&#39;s &#x2014; &rsquo;", "Schindler's — ’"),
        ("&amp;amp;amp;", "&"),
        ("&amp;amp;amp;amp;", "&amp;"),  # at most three layers
        ("AT&T; B&B; &nosuchentity;", "AT&T; B&B; &nosuchentity;"),
        ("Tom & Jerry", "Tom & Jerry"),
        ("QUOTATION_MARKCrocodileQUOTATION_MARK Dundee &amp; Co", '"Crocodile" Dundee & Co'),
    ],
)
def test_marks_are_decoded(text: str, decoded: str) -> None:
    assert decode_marks(text) == decoded
