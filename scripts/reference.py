"""The reference pages of the manual, written from the code.

python scripts/reference.py            write docs/reference/
python scripts/reference.py --check    exit status 1, and the names of pages that differ from the code
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

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
NOTE = "<!-- Written by `make reference` from the code. -->"


def pages() -> dict[str, str]:
    """File below docs/reference/ -> its text."""
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
    return {name: f"{NOTE}\n{text.strip()}\n" for name, text in texts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    wanted = pages()
    there = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    other = [name for name in wanted if name not in there or (PAGES / name).read_text(encoding="utf-8") != wanted[name]]
    other += sorted(there - wanted.keys())
    if check:
        print("".join(f"docs/reference/{name}: not what the code says; run make reference\n" for name in other), end="")
        return int(bool(other))
    for name in other:
        path = PAGES / name
        if name not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name], encoding="utf-8")
    print(f"{len(other)} of {len(wanted)} pages written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
