"""errors.md: every error with its code."""

from collections import defaultdict

from error_sites import iter_error_sites

from reference_pages.markdown import code, table


def errors_page() -> str:
    """Return the page. SystemExit for a code that several modules use."""
    modules = defaultdict(set)
    rows = []
    for site in sorted(iter_error_sites(), key=lambda site: (site.code, site.module, site.line)):
        if not site.code:
            continue
        modules[site.code].add(site.module)
        rows.append((code(site.code), site.sentence))
    if ambiguous := {code: sorted(names) for code, names in modules.items() if len(names) > 1}:
        raise SystemExit(f"one code in several modules: {ambiguous}")
    return f"""
# Errors
Bad input ends a command with exit status 2 and one line: `error: MESSAGE [CODE]`. The code stays the same when the
message is reworded. In Python, `str(error)` is the message and `error.code` the code. Braces stand for values of the
run.

Damaged rows of a file are reported together, as `data.damaged-rows`. Each line of that error names the file, the row,
what is wrong and the code of that problem; with `--skip-damaged`, `damaged.jsonl` has it under `code`.

{table(("code", "message"), rows)}
"""
