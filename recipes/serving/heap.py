"""Collections of garbage in processes that answer requests."""

import gc


def freeze_heap() -> None:
    """Leave what is there now out of later collections. Call it once, when everything is loaded.

    Imports of torch and vLLM leave some million objects. A full collection goes through all of them, and nothing is
    answered meanwhile.
    """
    gc.collect()
    gc.freeze()
