"""Garbage collection in processes that answer requests."""

import gc


def freeze_heap() -> None:
    """Exclude all current objects from later collections. Call it once, when everything is loaded.

    Importing torch and vLLM creates about a million objects. A full collection visits all of them, and the process
    answers nothing meanwhile.
    """
    gc.collect()
    gc.freeze()
