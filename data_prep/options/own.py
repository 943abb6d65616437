"""Options of `convrec data own`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from cyclopts import Parameter

from convrec.base.options import Number, read_with
from data_prep.options.output import OutputOptions

READABLE = ".jsonl, .json, .csv, .tsv, .txt (also .gz or .zst), .xlsx or .parquet"
Files = Annotated[Sequence[str], Parameter(metavar="FILE...")]
FormName = Literal[
    "redial",
    "tg-redial",
    "discord",
    "telegram",
    "zendesk",
    "intercom",
    "chatgpt",
    "claude",
    "sharegpt",
    "openai-batch",
    "openai-responses",
    "preference",
    "gemini",
    "langsmith",
    "oasst",
    "lmsys",
    "durecdial",
    "unicrs",
    "pearl",
    "crslab",
    "multiwoz",
    "utterances",
    "opendialkg",
    "slack",
    "turns",
    "own",
    "chat",
    "message-list",
    "alpaca",
    "prompt-completion",
    "langfuse",
    "whatsapp",
    "columns",
]


class PreviewCount(int):
    """Number of rows to show; 3 if the option has no value."""

    def __new__(cls, rows: int = 3) -> "PreviewCount":
        return super().__new__(cls, rows)


def _read_preview(_: Any, tokens: Sequence[Any]) -> PreviewCount:
    """Parse the value of --preview. Raises ValueError that says what the option takes."""
    read = Number(int, "a positive integer", lambda rows: rows > 0)
    return PreviewCount(int(read(tokens[0].value)))


def read_columns(text: str) -> dict[str, str]:
    """Parse `item_id=sku,title=name` into {"item_id": "sku", "title": "name"}.

    Raises:
        ValueError: an entry has another form, or one of our names occurs twice; the message shows the form.
    """
    parts = [[name.strip() for name in part.split("=")] for part in text.split(",")]
    if not all(len(part) == 2 and all(part) for part in parts) or len(dict(parts)) < len(parts):
        raise ValueError("item_id=sku,title=name, each of our names once")
    return dict(parts)


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """Convert your own data set to the parquet that the recipes read. docs/how-to/convert-conversations.md

    Every line is checked before anything is written; problems are reported with file, line and fix. Then --out appears
    as a whole.

    convrec data own --conversations conversations.jsonl --catalog catalog.csv --out data/own
    convrec data own --conversations conversations.jsonl --catalog catalog.csv --preview
    """

    COMMAND: ClassVar[str] = "data own"

    catalog: Annotated[str, Parameter(metavar="FILE", help=f"the items: {READABLE}")]
    conversations: Annotated[Files, Parameter(help=f"files of conversations: {READABLE}")] = ()
    split: Files = ()
    """files of train, validation and test instead of --conversations, or SPLIT=FILE"""
    out: str | None = None
    """folder to write"""
    preview: Annotated[
        PreviewCount | None,
        Parameter(converter=_read_preview, n_tokens=-1, consume_multiple=(0, 1), metavar="[N]"),
    ] = None
    """show the first N rows (3) and write nothing"""
    columns: Annotated[Mapping[str, str], read_with(read_columns), Parameter(metavar="OURS=THEIRS,...")] = field(
        default_factory=dict
    )
    """names of title, conversation_id, order, ... in the files"""
    form: Annotated[FormName | None, Parameter(name="--format")] = None
    """format of the conversations (guessed)"""
    truth: Literal["given", "from-next-turns"] = "given"
    """ground truth: given in the files, or inferred from the items that the next turns name"""
    recommenders: Annotated[Sequence[str], Parameter(name="--recommender", metavar="NAME...")] = ()
    """names of the speakers who recommend"""
    one_conversation: bool = False
    """read a table of turns without conversation ids as one conversation"""
    strict: bool = False
    """refuse columns that nothing reads"""
    ask: Annotated[Sequence[str] | None, Parameter(metavar="ATTRIBUTE...")] = None
    """columns of the catalog, or decade, that demonstrations ask about"""
    output: OutputOptions = field(default_factory=OutputOptions)
