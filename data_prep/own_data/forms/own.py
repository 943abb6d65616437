"""Records that already have our keys."""

from data_prep.own_data.forms.base import Form, Record, normalise_name

WANTED = frozenset({"ground_truth", "demonstration"})
_NAMES = frozenset(map(normalise_name, ("conversation", *WANTED)))


def _fits(record: Record) -> bool:
    return not _NAMES.isdisjoint(map(normalise_name, record))


OWN_FORM = Form(
    fits=_fits,
    reads=frozenset(),
    example='{"conversation": [{"role": "user", "content": "Something like Heat?"}], "ground_truth": ["Ronin (1998)"]}',
)
