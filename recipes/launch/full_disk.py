"""What a run says when a disk is full, wherever in it that was noticed: which one, and what is needed."""

import errno
import os
import shutil
from pathlib import Path

from convrec.checkpoints import manifest
from convrec.checkpoints.saving import step_folder
from convrec.runs.folder import latest_step

FULL = os.strerror(errno.ENOSPC)
NEARLY_FULL_BYTES = 64 * 2**20  # Ray's workers have written on, or removed, something by the time we look


def explanation(error: BaseException, run_folder: Path) -> str | None:
    """None for an error of another kind. Ray hands on the text of a worker's error, so the text counts as well."""
    if FULL not in str(error) and getattr(error, "errno", None) != errno.ENOSPC and not _is_full(error.__cause__):
        return None
    places = {"SAVE_PATH": run_folder, "temporary files, Ray's too": Path("/tmp"), "shared memory": Path("/dev/shm")}
    free = {what: (path, shutil.disk_usage(path).free) for what, path in places.items() if path.is_dir()}
    full = {what: place for what, place in free.items() if place[1] < NEARLY_FULL_BYTES} or free
    lines = [f"{path} ({what}): {bytes_free / 2**20:.0f} MiB free" for what, (path, bytes_free) in full.items()]
    last = latest_step(run_folder)
    size = sum(manifest.sizes(step_folder(run_folder, last)).values()) if last else 0
    needs = f"; a checkpoint of this run takes {size / 2**20:.0f} MiB, two are there at once" if size else ""
    return f"{FULL}: {'; '.join(lines)}{needs}. Make room (SAVE_KEEP limits what is kept)"


def _is_full(error: BaseException | None) -> bool:
    return error is not None and (getattr(error, "errno", None) == errno.ENOSPC or FULL in str(error))
