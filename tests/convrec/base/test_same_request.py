"""Digests of requests, and the differences between two."""

import hashlib
import subprocess
import sys

from convrec.base.same_request import differences, digest, json_roundtrip


def test_the_order_of_keys_does_not_matter():
    assert digest({"k": 5, "model": "a"}) == digest({"model": "a", "k": 5})
    assert digest({"k": 5}) != digest({"k": 6})
    assert digest((1, 2)) == digest([1, 2]), "tuples are lists in JSON"
    assert digest({"a": 1}) == hashlib.sha256(b'{"a": 1}').hexdigest()


def test_text_that_is_not_utf8_has_a_digest():
    assert digest("\ud800") != digest("?")


def test_a_digest_is_the_same_in_another_process():
    code = "from convrec.base.same_request import digest; print(digest({'b': [1, 2.5, None], 'a': 'é'}))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == digest({"a": "é", "b": [1, 2.5, None]})


def test_differences_name_new_removed_and_changed_entries():
    before = {"k": 5, "seed": 1, "gone": True}
    now = {"k": 6, "seed": 1, "new": "x"}
    assert differences(before, now) == ["gone was True and is None", "k was 5 and is 6", "new was None and is 'x'"]
    assert differences(before, before) == []
    assert differences({"ks": [1, 2]}, json_roundtrip({"ks": (1, 2)})) == []
