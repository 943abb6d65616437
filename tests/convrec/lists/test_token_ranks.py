"""Tokens and text must agree on rank k, for every kind of tokenizer and for any text or token sequence."""

import json
from functools import cache
from itertools import groupby, product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from convrec.lists.ranks import split_lines
from convrec.lists.token_bytes import find_fallback_tokens, token_bytes
from convrec.lists.token_ranks import (
    build_vocab_table,
    reference_rank_ids,
    stop_token_mask,
    table_from_bytes,
    token_rank_ids,
)
from tests.user_errors import refuses

CORPUS = [
    "Heat (1995)\nUp (2009)\n\nAmélie (2001)\n8 Mile (2002)\n(500) Days of Summer (2009)\n",
    "Sure! Here are some movies:\n1. Se7en (1995)\n2. The Thing (1982) - a classic\r\n3. Alien (1979)|Aliens (1986)\n",
    "千と千尋の神隠し (2001)\n  Æon Flux (2005)  \n\n\nToy Story 2 (1999)\tgood\n",
] * 8
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")
SPECIALS = ["<|endoftext|>", "<|im_end|>"]


def _wrap(tokenizer: Tokenizer, name: str, eos: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, name_or_path=name)


def _byte_level(name: str, pre_tokenizer: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIALS, initial_alphabet=alphabet)
    )
    # an added token that is not special is text; one with a raw newline is outside the byte alphabet
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("<a>\n<b>", special=False)])
    return _wrap(tokenizer, name, SPECIALS[0])


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def _llama2() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    lines = [
        line for text in CORPUS[:2] * 8 for line in text.split("\n")
    ]  # no newline: it becomes <0x0A>, as in Llama-2
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=160, special_tokens=["<unk>", "<s>", "</s>"]))
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer, "llama2-like", "</s>")


def _unigram() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
    )
    return _wrap(tokenizer, "unigram", "</s>")


BUILDERS = {
    "qwen2": lambda: _byte_level("qwen2-like", _split(QWEN_SPLIT)),
    "llama3": lambda: _byte_level("llama3-like", _split(LLAMA3_SPLIT)),
    # its merges may cross line breaks: `)\nUp` is one token
    "unsplit": lambda: _byte_level("unsplit", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "llama2": _llama2,
    "unigram": _unigram,
}
BYTE_LEVEL = ("qwen2", "llama3", "unsplit")


@cache
def get_tokenizer(kind):
    return BUILDERS[kind]()


@cache
def get_table(kind, delimiter="\n"):
    return build_vocab_table(get_tokenizer(kind), delimiter)


def compute_ranks(ids, table, eos=(), mask=None):
    ids_T = torch.tensor([ids], dtype=torch.long)
    mask_T = torch.ones_like(ids_T) if mask is None else torch.tensor([mask])
    return token_rank_ids(ids_T, mask_T, table, eos)[0].tolist()


def walk_bytes(pieces, delimiter):
    """Apply the grammar of docs/explanation/method.md 1 byte by byte; return each token's rank, and the lines."""
    ranks, lines, pending = [], [], True
    for piece in pieces:
        rank = None
        for byte in piece:
            if byte == ord(delimiter):
                pending = True
            elif byte not in b" \t\n\r\v\f":
                if pending:
                    lines.append(bytearray())
                    pending = False
                rank = len(lines) - 1 if rank is None else rank
            if lines and not pending:
                lines[-1].append(byte)
        ranks.append(len(lines) - 1 if rank is None else rank)
    return ranks, [line.decode("utf-8", "replace").strip(" \t\n\r\v\f") for line in lines]


def replace_bad_runs(tokenizer, ids, pieces):
    """Apply Llama-2's decoder: a run of byte tokens that is not UTF-8 becomes one U+FFFD per byte.

    Special tokens do not split a run.
    """
    tokens = tokenizer.convert_ids_to_tokens(ids)
    visible = [t for t in range(len(ids)) if pieces[t]]
    pieces = list(pieces)
    for is_byte, group in groupby(visible, key=lambda t: tokens[t].startswith("<0x")):
        run = list(group)
        try:
            b"".join(pieces[t] for t in run).decode("utf-8")
        except UnicodeDecodeError:
            assert is_byte
            for t in run:
                pieces[t] = "\ufffd".encode()
    return pieces


def check_agreement(kind, ids, delimiter):
    tokenizer, table = get_tokenizer(kind), get_table(kind, delimiter)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    all_bytes = token_bytes(tokenizer)
    pieces = [all_bytes[i] for i in ids]
    if kind == "llama2":
        pieces = replace_bad_runs(tokenizer, ids, pieces)
    ranks, byte_lines = walk_bytes(pieces, delimiter)
    assert compute_ranks(ids, table) == ranks
    lines = split_lines(text, delimiter)
    assert byte_lines == lines
    if kind == "llama2" and "\ufffd" in text:
        return  # splitting a run of bytes by rank can make its parts decodable
    if any((table.codes_V[i] >> 3) > 0 for i in ids):
        return  # a token that spans lines belongs to the first of them, which only the byte walk can check
    ids_by_rank = [[i for i, rank in zip(ids, ranks, strict=True) if rank == k] for k in range(len(lines))]
    assert [split_lines(tokenizer.decode(part, skip_special_tokens=True), delimiter) for part in ids_by_rank] == [
        [line] for line in lines
    ]


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            ["Heat (1995)", "Up", " ", "\n", "\n\n", "\r\n", "|", "\t", "\v", "1. ", "é", "千", "🎬", "\u00a0"]
        ),
        st.text(max_size=4),
    ),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("delimiter", ["\n", "|"])
@pytest.mark.parametrize("kind", BUILDERS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
@example(text="\n\nHeat (1995)\n\n \nUp\r\n")
@example(text="")
def test_tokens_of_rank_k_decode_to_line_k_for_texts(kind, delimiter, text):
    check_agreement(kind, get_tokenizer(kind).encode(text, add_special_tokens=False), delimiter)


@pytest.mark.parametrize("delimiter", ["\n", "|"])
@pytest.mark.parametrize("kind", BUILDERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tokens_of_rank_k_decode_to_line_k_for_any_tokens(kind, delimiter, data):
    tokenizer = get_tokenizer(kind)
    marked = [i for token, i in tokenizer.get_vocab().items() if "Ċ" in token or "|" in token or token == "<0x0A>"]
    ids = st.one_of(st.integers(0, len(tokenizer) - 1), st.sampled_from(marked or [0]))
    check_agreement(kind, data.draw(st.lists(ids, max_size=40)), delimiter)


@pytest.mark.parametrize("kind", BUILDERS)
def test_token_bytes_match_decoding(kind):
    tokenizer = get_tokenizer(kind)
    for token_id, expected in enumerate(token_bytes(tokenizer)):
        decoded = tokenizer.decode([token_id], skip_special_tokens=True)
        text = expected.decode("utf-8", "replace")
        assert decoded == text if kind in BYTE_LEVEL else decoded == text.removeprefix(" "), token_id


def test_the_unsplit_tokenizer_really_has_tokens_that_span_lines():
    assert (get_table("unsplit").codes_V >> 3).max() >= 1


def test_newline_byte_inside_invalid_utf8_does_not_end_a_line():
    # Llama-2's decoder: the run of byte tokens E2 0A is not UTF-8, so both become U+FFFD and the line does not end
    tokenizer, table = get_tokenizer("llama2"), get_table("llama2")

    def ranks_and_lines(*tokens):
        ids = tokenizer.convert_tokens_to_ids(list(tokens))
        return compute_ranks(ids, table), split_lines(tokenizer.decode(ids, skip_special_tokens=True))

    assert ranks_and_lines("<0xE2>", "<0x0A>", "U") == ([0, 0, 0], ["\ufffd\ufffdU"])
    assert ranks_and_lines("<0xC3>", "<0xA9>", "<0x0A>", "U") == ([0, 0, 0, 1], ["é", "U"])
    assert ranks_and_lines("<0xC3>", "<s>", "<0xA9>", "<0x0A>", "U") == ([0, 0, 0, 0, 1], ["é", "U"])
    assert ranks_and_lines("<0xE2>", "U", "<0x0A>", "U") == ([0, 0, 0, 1], ["\ufffdU", "U"])


def test_what_is_no_text_does_not_split_a_run_of_byte_tokens():
    tokenizer, table = get_tokenizer("llama2"), get_table("llama2")
    first, second, newline, u = tokenizer.convert_tokens_to_ids(["<0xC3>", "<0xA9>", "<0x0A>", "U"])  # é, \n, U
    assert compute_ranks([first, 10**6, second, newline, u], table) == [0, 0, 0, 0, 1]  # padding
    assert compute_ranks([first, u, second, newline, u], table, mask=[1, 0, 1, 1, 1]) == [0, -1, 0, 0, 1]  # a tool's
    assert compute_ranks([first, u, second, newline, u], table) == [0, 0, 0, 0, 0]


def test_runs_of_byte_tokens_are_utf8_where_python_decodes_them():
    # every first byte at which Unicode's table of well-formed sequences changes, with every such later byte
    first = [0x00, 0x7F, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5]
    later = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0]
    runs = [bytes(run) for count in range(4) for run in product(first, *[later] * count)]
    tokenizer, table = get_tokenizer("llama2"), get_table("llama2")
    u = tokenizer.convert_tokens_to_ids("U")
    byte_ids = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in range(256)])
    rows = [[*(byte_ids[byte] for byte in (*run, 0x0A)), *[u] * (5 - len(run))] for run in runs]
    ids = torch.tensor(rows)
    ranks = token_rank_ids(ids, torch.ones_like(ids), table, ())

    def is_utf8(run):
        try:
            run.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True

    # the line break after a run ends the line only if the run is UTF-8
    wrong = [run for run, last in zip(runs, ranks[:, -1].tolist(), strict=True) if last != is_utf8(run)]
    assert wrong == []


def pieces_table(pieces, specials=("<eos>", "<pad>")):
    vocab = sorted(set(pieces) | set(specials))
    table = table_from_bytes([b"" if piece in specials else piece.encode() for piece in vocab])
    return [vocab.index(piece) for piece in pieces], table, [vocab.index("<eos>")]


PIECES = {
    # a delimiter belongs to the item before it, however the tokenizer splits it
    "closing newline": (["Heat", ")\n", "Up", ")", "<eos>"], [0, 0, 1, 1, 1]),
    "double newline in a token": (["Heat", ")\n\n", "Up", "<eos>"], [0, 0, 1, 1]),
    "newlines apart": (["Heat", "\n", "\n", " ", "Up", "\n", "<eos>"], [0, 0, 0, 0, 1, 1, 1]),
    "leading blank": (["\n", " ", "Heat", "\n", "Up"], [-1, -1, 0, 0, 1]),
    "newline opens the token": (["Heat", "\nUp", " x"], [0, 1, 1]),
    "space between newline and item": (["Heat", "\n", "  Up"], [0, 0, 1]),
    # a token belongs to the line of its first character; later ranks count the lines inside it
    "token over three lines": (["A", "b\nc\n\nd", "e", "\n", "f"], [0, 0, 2, 2, 3]),
    "token over lines that ends a line": (["b\nc\n", "d"], [0, 2]),
    "only stop": (["<eos>", "<pad>"], [-1, -1]),
    "blank then stop": (["\n", "<eos>"], [-1, -1]),
    "stop token alone on its line": (["A", "\n", "<eos>"], [0, 0, 0]),
    "after the stop": (["A", "<eos>", "B", "<eos>"], [0, 0, -1, -1]),
    "special token inside": (["A", "<pad>", "B", "\n", "<pad>", "C"], [0, 0, 0, 0, 0, 1]),
    "carriage return ends no line": (["A", "\r", "B", "\r\n", "C"], [0, 0, 0, 0, 1]),
}


@pytest.mark.parametrize(("pieces", "expected"), PIECES.values(), ids=PIECES)
def test_ranks_of_pieces(pieces, expected):
    ids, table, eos = pieces_table(pieces)
    assert compute_ranks(ids, table, eos) == expected


def test_tokens_of_others_have_no_rank_and_are_not_text():
    ids, table, eos = pieces_table(["A", "\n", "tool", "\n", "B", "<eos>", "<eos>"])
    # the newline is masked
    assert compute_ranks(ids, table, eos, mask=[1, 0, 0, 0, 1, 1, 0]) == [0, -1, -1, -1, 0, 0, -1]
    assert compute_ranks(ids, table, eos, mask=[1, 1, 0, 0, 1, 1, 0]) == [0, 0, -1, -1, 1, 1, -1]


def test_a_stop_token_is_never_an_item_even_if_decoding_shows_it():
    vocab = [b"A", b"\n", b"</s>"]
    assert compute_ranks([0, 1, 2], table_from_bytes(vocab), eos=[2]) == [0, 0, 0]
    assert compute_ranks([0, 1, 2], table_from_bytes(vocab), eos=[]) == [0, 0, 1]


def test_rows_are_independent_and_padding_changes_nothing():
    ids, table, eos = pieces_table(["\n", "A", "\n", "B", "<eos>", "<pad>", "<pad>"])
    rows = torch.tensor([ids, ids[1:] + ids[5:6], ids[3:] + ids[4:5] * 3])
    mask = torch.tensor([[1] * 5 + [0] * 2, [1] * 4 + [0] * 3, [1] * 2 + [0] * 5])
    expected = [[-1, 0, 0, 1, 1, -1, -1], [0, 0, 1, 1, -1, -1, -1], [0, 0, -1, -1, -1, -1, -1]]
    assert token_rank_ids(rows, mask, table, eos).tolist() == expected


def test_a_table_moves_to_a_device_with_its_bytes_of_fallback():
    table = get_table("llama2").to("meta")
    assert {values_V.device.type for values_V in (table.codes_V, table.newlines_V, table.fallback_V)} == {"meta"}
    assert get_table("qwen2").to("meta").fallback_V is None


def test_ids_beyond_the_vocabulary_are_blank():
    ids, table, eos = pieces_table(["A", "\n", "B"])
    assert compute_ranks([ids[0], 10**6, ids[1], -100, ids[2]], table, eos) == [0, 0, 0, 0, 1]
    for unknown in (10**6, -100):
        assert compute_ranks([ids[0], unknown, ids[1], ids[2]], table, eos) == [0, 0, 0, 1]


def test_responses_without_tokens_have_no_ranks():
    _, table, eos = pieces_table(["A", "\n"])
    empty = torch.empty(2, 0, dtype=torch.long)
    assert stop_token_mask(empty, empty, eos).tolist() == [[], []]
    for function in (token_rank_ids, reference_rank_ids):
        assert function(empty, empty, table, eos).tolist() == [[], []]
        others = torch.zeros(2, 3, dtype=torch.long)  # none of the model's own
        assert function(others, others, table, eos).tolist() == [[-1] * 3] * 2


def test_stop_token_is_the_first_of_any_end_id():
    ids = torch.tensor([[5, 9, 8, 9], [5, 5, 5, 5], [8, 9, 5, 5], [5, 8, 5, 9]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    expected = [[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
    assert stop_token_mask(ids, mask, [8, 9]).int().tolist() == expected


def test_delimiter_must_be_one_ascii_character():
    for delimiter in ("", "\n\n", "、"):
        with refuses("lists.delimiter", repr(delimiter)):
            build_vocab_table(get_tokenizer("qwen2"), delimiter)


def test_unsupported_decoder_is_refused_by_name():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with refuses("lists.unsupported-decoder", "bert-like", "WordPiece"):
        build_vocab_table(_wrap(tokenizer, "bert-like", "[UNK]"))


@pytest.mark.parametrize(
    ("decoder", "value"),
    [
        (decoders.Strip("。", 1, 0), "。"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("a+"), "b")]), "a+"),
    ],
)
def test_decoder_steps_that_change_text_are_refused(decoder, value):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoder
    with refuses("lists.unsupported-decoder", "stripper", value):
        token_bytes(_wrap(tokenizer, "stripper", "[UNK]"))


def test_without_a_decoder_tokens_are_joined_with_spaces():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "<0x0A>": 3}, unk_token="[UNK]"))
    assert token_bytes(_wrap(tokenizer, "words", "[UNK]")) == [b"", b" a", b"", b" <0x0A>"]


def test_tokenizer_unable_to_write_delimiter_is_refused_by_name():
    tokenizer = Tokenizer.from_str(get_tokenizer("qwen2").backend_tokenizer.to_str())
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    with refuses("lists.unwritable-delimiter", "t5-like", "'\\n'"):
        build_vocab_table(_wrap(tokenizer, "t5-like", SPECIALS[0]))


# The first F of the test lists comes after a character of several byte tokens, the first M in a list of ASCII.
@pytest.mark.parametrize(
    ("kind", "right", "wrong"), [("qwen2", b"\n", b" "), ("llama2", b"F", b"\n"), ("llama2", b"M", b"\n")]
)
def test_self_check_catches_a_wrong_table(monkeypatch, kind, right, wrong):
    tokenizer = get_tokenizer(kind)
    texts = [text.replace(right, wrong) for text in token_bytes(tokenizer)]
    monkeypatch.setattr("convrec.lists.token_ranks.token_bytes", lambda _: texts)
    with refuses("lists.line-mismatch", f"{kind}-like"):
        build_vocab_table(tokenizer)


def test_a_tokenizer_of_byte_tokens_alone_is_supported():
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = _wrap(tokenizer, "bytes", "<unk>")
    ids = tokenizer.encode("é\n千")
    # one run of byte tokens: 2 bytes, the line break, 3 bytes
    assert compute_ranks(ids, build_vocab_table(tokenizer)) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("decoder", [None, decoders.ByteFallback()])
def test_only_decoders_with_byte_fallback_have_byte_tokens(decoder):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "<0x0A>": 2}, unk_token="[UNK]"))
    tokenizer.add_tokens([AddedToken("<0x09>", special=False)])
    if decoder:
        tokenizer.decoder = decoder
    tokenizer = _wrap(tokenizer, "words", "[UNK]")
    assert tokenizer.decode([2, 3]).replace(" ", "") == ("\n\t" if decoder else "<0x0A><0x09>")
    assert find_fallback_tokens(tokenizer) == ({2: 10, 3: 9} if decoder else {})


def test_a_slow_tokenizer_is_refused():
    with refuses("lists.slow-tokenizer", "slow-one"):
        token_bytes(SimpleNamespace(name_or_path="slow-one"))


# --- the reference's segmentation ---

# docs/explanation/method.md 1 differs from the reference for these on purpose.
SEGMENTATION_DIFFERENCES = {
    "leading newline": ([-1, 0, 0, 1, 1], "whitespace before the first item has no rank and shifts no ranks"),
    "trailing newline": ([0, 0, 0], "an empty last line is not an item: the stop token comes after one item"),
    "EOS only": ([-1], "an empty list has no rank for its stop token to belong to"),
}


@pytest.fixture(scope="module")
def segmentation_cases(golden):
    return golden("segmentation_cases")["cases"]


def _golden_ranks(case, rank_function):
    ids, table, eos = pieces_table(case["token_pieces"])
    ids_T, mask_T = torch.tensor([ids]), torch.tensor([case["completion_mask"]])
    return rank_function(ids_T, mask_T, table, eos)


def test_reference_segmentation_matches_all_goldens(segmentation_cases):
    for case in segmentation_cases:
        ranks_T = _golden_ranks(case, reference_rank_ids)[0]
        assert ranks_T.tolist() == case["rank_ids"], case["name"]
        assert (ranks_T >= case["max_items"]).int().tolist() == case["overflow_mask"], case["name"]
        assert ranks_T.max() + 1 == case["items_emitted"], case["name"]


def test_reference_ranks_skip_other_tokens_and_those_after_a_stop():
    ids, table, eos = pieces_table(["A", "\n", "tool", "\n", "B", "<eos>", "C\n", "D"])
    for mask, expected in (
        ([1, 0, 0, 0, 1, 1, 1, 1], [0, -1, -1, -1, 0, 0, -1, -1]),  # both delimiters are the tool's
        ([1, 1, 0, 0, 1, 1, 1, 1], [0, 0, -1, -1, 1, 1, -1, -1]),
    ):
        assert reference_rank_ids(torch.tensor([ids]), torch.tensor([mask]), table, eos)[0].tolist() == expected


def test_paper_segmentation_differs_from_goldens_as_intended(segmentation_cases):
    ours = {case["name"]: _golden_ranks(case, token_rank_ids)[0].tolist() for case in segmentation_cases}
    expected = {case["name"]: case["rank_ids"] for case in segmentation_cases}
    assert ours == expected | {name: ranks for name, (ranks, _) in SEGMENTATION_DIFFERENCES.items()}
