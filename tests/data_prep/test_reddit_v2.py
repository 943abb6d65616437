"""Conversion of the released tree, made here with `datasets`."""

import json
import pickle
import shutil
import struct
from collections import OrderedDict

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.base.errors import UserError
from convrec.data.schema import format_prompt, parse_conversation_id
from convrec.data.validation import validate_rl_table, validate_sft_table
from convrec.titles.catalog import load_catalog
from data_prep import reddit_v2
from data_prep.reddit_v2 import TARGETS, convert, main
from data_prep.released import clean_row, find_split, read_split
from data_prep.tables import SampleIds
from tests.user_errors import refuses

TRUTH = "groundtruth_with_release_year"
CATALOG = [("Heat", 1995), ("Rififi", "1955"), ("The Wall", 201), ("M", 1931)]
TRAIN, SFT_TRAIN = TARGETS[0], TARGETS[1]
datasets.disable_progress_bars()


def row(number: int, **changes) -> dict:
    """Make a row in the released columns, with oddities of the release: `?` for an apostrophe, curly quotes."""
    return {
        "prompt": [{"content": format_prompt(f"USER: don?t know “it” {number}\n"), "role": "user"}],
        "seen_titles": ["Heat"] if number % 2 else [],
        TRUTH: [["Rififi", "1955"], ["M", "1931"]][: 1 + number % 2],
        "completion": [{"content": f"Rififi (1955)\nM (1931)\nHeat (199{number % 10})", "role": "assistant"}],
    } | changes


def save(folder, rows, shards=1) -> None:
    datasets.Dataset.from_list(rows).save_to_disk(folder, num_shards=shards)


def drop_completion(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "completion"} for row in rows]


@pytest.fixture(scope="module")
def whole_tree(tmp_path_factory):
    """Every part: train has three shards and its last row is its first one; one validation row has no truth."""
    tree = tmp_path_factory.mktemp("released") / "processed_datasets"
    rows = [row(number) for number in range(2499)] + [row(0)]
    save(tree / "grpo/grpo_dataset/train", drop_completion(rows), shards=3)
    (tree / "grpo/grpo_dataset/dataset_dict.json").write_text('{"splits": ["train"]}')
    save(tree / "sft_dataset/train", rows[:50])
    save(tree / "sft_dataset/validation", [*rows[:9], row(9, **{TRUTH: []})])
    save(tree / "sft_dataset/test", [*rows[:4], row(4, **{TRUTH: []}), row(5, completion=[])])
    (tree / "gt_catalog.pkl").write_bytes(pickle.dumps(CATALOG))
    return tree


@pytest.fixture(scope="module")
def whole(whole_tree, tmp_path_factory):
    """The folder that the whole tree becomes, and the summary."""
    out = tmp_path_factory.mktemp("converted") / "out"
    return out, convert(whole_tree, out)


@pytest.fixture
def tree(whole_tree, tmp_path):
    """A copy to damage, with the small splits only."""
    copy = tmp_path / "processed_datasets"
    shutil.copytree(whole_tree / "sft_dataset", copy / "sft_dataset")
    shutil.copy(whole_tree / "gt_catalog.pkl", copy)
    return copy


def read(out, name):
    return pq.read_table(out / f"{name}.parquet").to_pylist()


def converted(tmp_path, rows, part="sft_dataset/train"):
    """Convert a tree with only this part, and return the numbers of its one file."""
    save(tmp_path / "tree" / part, rows)
    ((_, numbers),) = convert(tmp_path / "tree", tmp_path / "out")["files"].items()
    return numbers


def changes(out, name):
    return [json.loads(line) for line in (out / f"{name}.changes.jsonl").read_text().splitlines()]


def test_every_part_becomes_the_table_that_the_recipes_read(whole):
    out, summary = whole
    assert validate_rl_table(out / "train.parquet") == (2500, [])
    assert validate_sft_table(out / "sft_train.parquet") == (50, [])
    assert validate_sft_table(out / "sft_validation.parquet") == (10, [])
    assert validate_rl_table(out / "validation.parquet") == (9, [])
    assert validate_rl_table(out / "test.parquet", allow_empty_ground_truth=True) == (6, [])
    assert summary["missing"] == []
    assert json.loads((out / "summary.json").read_text()) == summary
    # 1,250 even numbers with one ground truth (0 twice), 1,249 odd ones with two: (1,251 + 2,498) / 2,500
    train = summary["files"]["train"]
    assert train["ground_truths"] == {"mean": round(3749 / 2500, 4), "most": 2, "rows_without": 0, "titles": 2}
    assert (train["rows"], train["contexts"], train["rows_read"]) == (2500, 2499, 2500)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    catalog = load_catalog(out / "catalog.parquet")
    assert list(catalog.titles) == [title for title, _ in CATALOG]
    assert list(catalog.years) == [1995, 1955, None, 1931]
    assert "'The Wall' has the year 201" in summary["catalog"]["problems"][0]
    assert "'The Wall'" in catalog.problems[0]


def test_rows_keep_order_text_and_number(whole):
    out, _ = whole
    sft = read(out, "sft_train")
    assert [{name: value for name, value in row.items() if name != "sample_id"} for row in sft] == [
        row(number) for number in range(50)
    ]
    train = read(out, "train")
    assert train[0] | {"sample_id": ""} == train[-1] | {"sample_id": ""}  # two users gave the same reply: two rows
    assert len({row["sample_id"] for row in train}) == 2500
    assert [row["sample_id"] for row in sft] == [row["sample_id"] for row in train[:50]]


texts = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([(), (("M", "1931"),)]), st.sampled_from([(), ("Heat",)])),
    max_size=8,
)


@given(texts, st.randoms())
def test_the_ids_of_shuffled_rows_are_the_same_ids(rows, rng):
    ids, shuffled_ids = SampleIds(), SampleIds()
    before = sorted((row, ids(*row)) for row in rows)
    rng.shuffle(rows)
    assert sorted((row, shuffled_ids(*row)) for row in rows) == before
    assert len({name for _, name in before}) == len(rows)


def test_ids_name_the_conversation_that_contexts_extend(tmp_path):
    starts = ["USER: any old westerns?\n", "USER: any new westerns?\n"]
    texts = [starts[0], f"{starts[0]}SYSTEM: Rififi (1955)\nUSER: newer\n", starts[1]]
    prompts = [[{"content": format_prompt(text), "role": "user"}] for text in texts]
    rows = [row(n, prompt=prompt) for n, prompt in enumerate(prompts)]
    rows += [row(0, prompt=prompts[0], seen_titles=titles) for titles in (["Up"], ["M"])]
    converted(tmp_path, drop_completion(rows), "grpo_dataset/train")
    ids = [row["sample_id"] for row in read(tmp_path / "out", "train")]
    assert [parse_conversation_id(name) == parse_conversation_id(ids[0]) for name in ids] == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert len(set(ids)) == 5


def test_titles_outside_the_catalog_are_counted(tmp_path):
    truths = [[["Heat", "1995"], ["Up", "2009"]], [["Up", "2009"], ["Alien", "1979"]], [["Heat", "2009"]]]
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/gt_catalog.pkl").write_bytes(pickle.dumps({("Heat", "1995"), ("M", 1931)}))
    numbers = converted(tmp_path, [row(n, **{TRUTH: truth}) for n, truth in enumerate(truths)])
    outside = {"mentions": 4, "share": 0.8, "titles": 3, "most_frequent": ["Up (2009)", "Alien (1979)", "Heat (2009)"]}
    assert numbers["outside_catalog"] == outside


@pytest.mark.parametrize(
    ("target", "damage", "why"),
    [
        (TRAIN, {"prompt": []}, "not exactly one user message"),
        (TRAIN, {"prompt": None}, "not exactly one user message"),
        (TRAIN, {"prompt": [None]}, "not exactly one user message"),
        (TRAIN, {"prompt": [{"role": "system", "content": "x"}]}, "not exactly one user message"),
        (TRAIN, {"prompt": [{"role": "user", "content": " \n"}]}, "not exactly one user message"),
        (TRAIN, {"prompt": [{"role": "user", "content": "x"}] * 2}, "not exactly one user message"),
        (TRAIN, {TRUTH: []}, "no ground truth"),
        (TRAIN, {TRUTH: None}, "no ground truth"),
        (TRAIN, {TRUTH: [["Heat", "n/a"]]}, "no ground truth"),
        (SFT_TRAIN, {"completion": []}, "not exactly one assistant message"),
        (SFT_TRAIN, {"completion": [{"role": "assistant", "content": ""}]}, "not exactly one assistant message"),
    ],
)
def test_unusable_rows_are_set_aside(target, damage, why):
    cleaned, notes = clean_row(row(1, **damage), target)
    assert cleaned is None
    assert why in notes[0]


@pytest.mark.parametrize(
    ("damage", "fixed", "note"),
    [
        ({TRUTH: [["Heat", "1995.0"]]}, [["Heat", "1995"]], "'1995.0' written as '1995'"),
        ({TRUTH: [["Heat", " 1995 "]]}, [["Heat", "1995"]], "written as '1995'"),
        ({TRUTH: [["Heat", 1995]]}, [["Heat", "1995"]], "1995 written as '1995'"),
        ({TRUTH: [{"title": "Heat", "year": 1995}]}, [["Heat", "1995"]], "written as '1995'"),
        ({TRUTH: [["Heat", "1995"], ["Up", ""]]}, [["Heat", "1995"]], "['Up', ''] has no title or no year"),
        ({TRUTH: [["Heat", "1995"], ["", "1999"], ["M"], None]}, [["Heat", "1995"]], "no title or no year"),
        ({"seen_titles": None}, [], "seen titles"),
        ({"seen_titles": ["Heat", None, " "]}, ["Heat"], "seen titles"),
    ],
)
def test_repairs_are_made_and_noted(damage, fixed, note):
    (column,) = damage
    cleaned, notes = clean_row(row(1, **damage), TRAIN)
    assert [list(value) if isinstance(value, tuple) else value for value in cleaned[column]] == fixed
    assert note in " ".join(notes)
    untouched = "seen_titles" if column == TRUTH else TRUTH
    assert [list(v) if isinstance(v, tuple) else v for v in cleaned[untouched]] == row(1)[untouched]


def test_changes_are_written_with_row_and_reason(tmp_path):
    rows = [row(0), row(1, prompt=[]), row(2), row(3, **{TRUTH: [["M", "1931.0"]]}), row(4, completion=[])]
    summary = converted(tmp_path, rows)
    assert (summary["rows_read"], summary["rows"], summary["repaired"], summary["set_aside"]) == (5, 3, 1, 2)
    assert sum(summary["set_aside_why"].values()) == 2
    notes = changes(tmp_path / "out", "sft_train")
    assert [(note["row"], note["action"]) for note in notes] == [(1, "set aside"), (3, "repaired"), (4, "set aside")]
    assert {note["source"] for note in notes} == {"sft_dataset/train"}
    assert notes[1]["why"] == ["ground truth 'M': year '1931.0' written as '1931'"]
    assert summary["outside_catalog"] is None  # no pickle in the tree


def test_parts_may_be_missing_and_are_listed(tree, tmp_path):
    shutil.rmtree(tree / "sft_dataset/train")
    (tree / "gt_catalog.pkl").unlink()
    summary = convert(tree, tmp_path / "out")
    assert list(summary["files"]) == ["sft_validation", "validation", "test"]
    assert summary["missing"] == ["grpo/grpo_dataset/train", "sft_dataset/train", "gt_catalog.pkl"]
    assert not (tmp_path / "out/catalog.parquet").exists()


@pytest.mark.parametrize("folder", ["grpo/grpo_dataset/train", "grpo_dataset/train", "grpo_dataset"])
def test_the_rl_split_is_found_where_releases_have_it(tmp_path, folder):
    assert converted(tmp_path, drop_completion([row(0)]), folder)["source"] == folder


def test_a_folder_without_any_part_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with refuses("reddit.empty-source", tmp_path / "empty"):
        convert(tmp_path / "empty", tmp_path / "out")
    with refuses("reddit.missing-source", tmp_path / "absent"):
        convert(tmp_path / "absent", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_hostile_pickle_is_refused_before_anything_is_written(tree, tmp_path):
    (tree / "gt_catalog.pkl").write_bytes(pickle.dumps(OrderedDict(a=1)))
    with pytest.raises(UserError, match="only plain lists"):
        convert(tree, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_conversion_leaves_what_was_there(tree, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def read_and_stop(split, *others):
        yield from read_split(split, *others)
        if split.name == "sft_dataset/test":
            raise KeyboardInterrupt

    for is_there in (False, True):
        before = {path: path.read_bytes() for path in out.glob("*")}
        assert bool(before) == is_there
        with monkeypatch.context() as patched:
            patched.setattr(reddit_v2, "read_split", read_and_stop)
            with pytest.raises(KeyboardInterrupt):
                convert(tree, out, overwrite=is_there)
        assert {path: path.read_bytes() for path in out.glob("*")} == before
        assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
        convert(tree, out, overwrite=is_there)


def test_existing_folder_is_replaced_whole_and_only_on_request(tree, tmp_path):
    out = tmp_path / "out"
    convert(tree, out)
    shutil.rmtree(tree / "sft_dataset/train")
    (tree / "gt_catalog.pkl").unlink()
    before = {path: path.read_bytes() for path in out.iterdir()}
    with refuses("output.already-there", out, "--overwrite"):
        convert(tree, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    convert(tree, out, overwrite=True)
    names = ("sft_validation", "validation", "test")
    ours = {f"{name}{end}" for name in names for end in (".parquet", ".changes.jsonl")}
    assert {path.name for path in out.iterdir()} == {*ours, "summary.json"}
    (out / "notes.txt").write_text("something of the user's")
    with refuses("output.foreign-file", out, "notes.txt"):
        convert(tree, out, overwrite=True)


def test_a_damaged_tree_is_refused(tree, tmp_path):
    folder = tree / "sft_dataset/train"

    def check_refused(code: str, *values: object) -> None:
        with refuses(code, *values):
            convert(tree, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    (shard,) = folder.glob("*.arrow")
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])  # a whole batch, cut off before the stream's end
    check_refused("reddit.truncated-shard", shard)
    shard.write_bytes(b"\xff" * 100 + content[100:])
    check_refused("reddit.damaged-shard", shard)
    shard.write_bytes(content)
    state = (folder / "state.json").read_text()
    (folder / "state.json").write_text(state.replace("00000-of", "00007-of"))
    check_refused("reddit.missing-shard", folder, "data-00007-of-00001.arrow")
    indices = {"_indices_data_files": [{"filename": "i.arrow"}]}
    (folder / "state.json").write_text(json.dumps(json.loads(state) | indices))
    check_refused("reddit.selected-rows", folder, "_indices_data_files")
    (folder / "state.json").write_text(json.dumps(json.loads(state) | {"_data_files": []}))
    check_refused("reddit.no-shards", folder / "state.json")
    (folder / "state.json").write_text("{}")
    check_refused("reddit.damaged-state-file", folder / "state.json")
    (folder / "state.json").unlink()
    check_refused("reddit.no-state-file", folder)
    shutil.rmtree(folder)
    save(folder, [{name: value for name, value in row(0).items() if name != "seen_titles"}])
    check_refused("reddit.missing-column", "seen_titles", "prompt,")


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("prompt", "USER: hi", "column prompt is string, not a list"),
        ("prompt", ["USER: hi"], "column prompt is list<item: string>, not a list of {content, role} messages"),
        ("prompt", [{"content": 7, "role": "user"}], "column prompt is list<item: struct<content: int64"),
        ("completion", [{"text": "M (1931)"}], "column completion is list<item: struct<text: string>>, not"),
        ("seen_titles", [7], "column seen_titles is list<item: int64>, not a list of titles"),
        (TRUTH, ["M", "1931"], f"column {TRUTH} is list<item: string>, not a list of [title, year] pairs"),
        (TRUTH, [{"name": "M"}], f"column {TRUTH} is list<item: struct<name: string>>, not"),
    ],
)
def test_columns_of_another_type_are_refused(tmp_path, column, value, problem):
    with refuses("reddit.wrong-column-type", "data-00000-of-00001.arrow", problem):
        converted(tmp_path, [row(0, **{column: value})])


@pytest.mark.parametrize("how", ["absolute", "..", "link.arrow", "inside/mine.arrow"])
def test_state_naming_a_file_outside_its_folder_is_refused(tree, tmp_path, how):
    folder = tree / "sft_dataset/train"
    (shard,) = folder.glob("*.arrow")
    elsewhere = tmp_path / "private"
    elsewhere.mkdir()
    shard.rename(elsewhere / "mine.arrow")
    name = {"absolute": str(elsewhere / "mine.arrow"), "..": "../../../private/mine.arrow"}.get(how, how)
    (folder / "link.arrow").symlink_to(elsewhere / "mine.arrow")
    (folder / "inside").symlink_to(elsewhere)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with refuses("reddit.shard-outside-folder", folder / "state.json", repr(name), "cp -rL"):
        convert(tree, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_within_the_folder_and_to_the_folder_is_read(tree, tmp_path):
    folder = tree / "sft_dataset/train"
    (shard,) = folder.glob("*.arrow")
    shard.rename(folder / "kept.arrow")
    shard.symlink_to("kept.arrow")
    (tmp_path / "linked").symlink_to(tree)
    assert convert(tmp_path / "linked", tmp_path / "out")["files"]["sft_train"]["rows"] == 50


def spoil(tree, before: bytes, after: bytes) -> None:
    (shard,) = (tree / "sft_dataset/train").glob("*.arrow")
    content = shard.read_bytes()
    assert content.count(before) == 1
    shard.write_bytes(content.replace(before, after))


def test_invalid_utf8_and_bad_offsets_stop_the_conversion(tree, tmp_path):
    text = "know “it” 7\n".encode()
    spoil(tree, text, b"know \xff\xfeit now 7\n")
    with refuses("reddit.invalid-utf8", "00001.arrow: row 7"):
        convert(tree, tmp_path / "out")
    spoil(tree, b"know \xff\xfeit now 7\n", text)
    offsets = struct.pack("<4i", *(len(row(0)["prompt"][0]["content"].encode()) * n for n in range(4)))
    spoil(tree, offsets, offsets[:4] + struct.pack("<i", -9) + offsets[8:])
    with refuses("reddit.damaged-shard", "00001.arrow"):
        convert(tree, tmp_path / "out")


def test_a_split_without_usable_rows_is_refused(tmp_path):
    rows = [row(n, **{TRUTH: [["M", "?"]]}) for n in range(3)]
    with refuses("reddit.no-usable-rows", "grpo_dataset/train", "3: no ground truth"):
        converted(tmp_path, drop_completion(rows), "grpo_dataset/train")
    assert not (tmp_path / "out").exists()


def test_a_split_whose_shards_are_empty_is_refused(tree, tmp_path):
    folder = tree / "sft_dataset/train"
    (shard,) = folder.glob("*.arrow")
    with pa.ipc.open_stream(shard.read_bytes()) as reader, pa.ipc.new_stream(str(shard), reader.schema):
        pass
    with refuses("reddit.no-rows", "sft_dataset/train"):
        convert(tree, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_catalog_without_any_ground_truth_is_refused(tree, tmp_path):
    (tree / "gt_catalog.pkl").write_bytes(pickle.dumps({("Up", 2009), ("Alien", 1979)}))
    with refuses("reddit.catalog-mismatch", tree / "gt_catalog.pkl", "Rififi (1955)"):
        convert(tree, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_batches_are_small_whatever_the_shard_holds(tmp_path):
    table = pa.Table.from_pylist([{"seen_titles": []}] * 3500, pa.schema([("seen_titles", pa.list_(pa.string()))]))
    with pa.OSFile(str(tmp_path / "one.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "one.arrow"}]}')
    split = find_split(tmp_path, ["."])
    assert [len(rows) for rows in read_split(split, ("seen_titles",))] == [1000, 1000, 1000, 500]


def test_command_prints_counts_and_exits_2_on_user_errors(tree, tmp_path, capsys):
    main(["--source", str(tree), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "validation            9 rows; 9 contexts; 1.44 ground truths per row, 2 at most; 0.0 % of" in printed
    assert "10 rows read, 0 repaired, 1 set aside (1: no ground truth): validation.changes.jsonl" in printed
    assert "'The Wall' has the year 201" in printed
    assert "not in the source, so not written: grpo/grpo_dataset/train" in printed
    assert main(["--source", str(tmp_path / "absent"), "--out", str(tmp_path / "out")]) == 2
    assert "[reddit.missing-source]" in capsys.readouterr().err


def test_real_data_in_the_released_layout_passes_unchanged(shared_dir, tmp_path):
    out = tmp_path / "out"
    summary = convert(shared_dir / "data/redial/processed_datasets", out)
    assert validate_rl_table(out / "train.parquet") == (1000, [])
    assert len(load_catalog(out / "catalog.parquet")) == 6299
    train = summary["files"]["train"]
    assert (train["set_aside"], train["repaired"], train["outside_catalog"]["mentions"]) == (0, 0, 0)
    original = pq.read_table(shared_dir / "data/redial/train.parquet").slice(0, 1000).to_pylist()
    for before, after in zip(original, read(out, "train"), strict=True):
        assert {**before, "sample_id": ""} == {**after, "sample_id": ""}
