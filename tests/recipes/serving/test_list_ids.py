"""One secret for all processes of a folder, however they start."""

import os
from pathlib import Path

import pytest

from recipes.serving.list_ids import SECRET_FILE, ListIds


def test_two_first_starts_with_one_process_id_share_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two containers, the first process has the same id."""
    others: list[ListIds] = []
    sync = os.fsync

    def sync_beside_another_container(file: int) -> None:
        if not others:
            monkeypatch.setattr(os, "fsync", sync)
            others.append(ListIds(tmp_path))
        sync(file)

    monkeypatch.setattr(os, "fsync", sync_beside_another_container)
    ids = ListIds(tmp_path)
    (other,) = others
    assert ids.is_genuine(other.make())
    assert other.is_genuine(ids.make())
    assert os.listdir(tmp_path) == [SECRET_FILE]


def test_a_secret_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ValueError, match=SECRET_FILE):
        ListIds(tmp_path)
    assert os.listdir(tmp_path) == []
