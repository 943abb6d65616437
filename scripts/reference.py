"""The pages of the manual that are made: docs/reference/ from the code, the status page from notes/measured/.

python scripts/reference.py            write them
python scripts/reference.py --check    exit status 1, and the names of pages that are outdated
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from reference_pages import api, commands
from reference_pages.errors import errors_page
from reference_pages.exit_statuses import exit_statuses_page
from reference_pages.files import files_page
from reference_pages.http_api import http_api_page
from reference_pages.metrics import metrics_page
from reference_pages.models import models_page
from reference_pages.settings import settings_page
from reference_pages.status import status_page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
NOTE = "<!-- Written by `make reference` from {source}. -->"


def pages() -> dict[str, str]:
    """File below docs/ -> its text."""
    texts = {
        "commands.md": commands.commands_page(),
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
        "files.md": files_page(),
        "http-api.md": http_api_page(),
        "exit-statuses.md": exit_statuses_page(),
        "models.md": models_page(),
        "errors.md": errors_page(),
    }
    texts |= dict(api.api_pages())
    reference = {f"reference/{name}": _finish(text, "the code") for name, text in texts.items()}
    return reference | {"explanation/status.md": _finish(status_page(), "notes/measured/")}


def _finish(text: str, source: str) -> str:
    return f"{NOTE.format(source=source)}\n{text.strip()}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    wanted = pages()
    outdated = [name for name, text in wanted.items() if not _holds(DOCS / name, text)]
    there = {path.relative_to(DOCS).as_posix() for path in REFERENCE.rglob("*.md")}
    abandoned = sorted(there - wanted.keys())
    if check:
        for name in outdated + abandoned:
            print(f"docs/{name}: not what its source says; run make reference")
        return int(bool(outdated or abandoned))
    for name in abandoned:
        (DOCS / name).unlink()
    for name in outdated:
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name], encoding="utf-8")
    print(f"{len(outdated)} of {len(wanted)} pages written")
    return 0


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
