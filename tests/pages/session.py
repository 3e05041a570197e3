"""One session of Python for the snippets of a page. Run as a program by the page's own interpreter.

Each line of stdin names a request, a file of JSON: the page, the line, the kind and the text of a snippet, and where
its output goes. The answer, a line on stdout, is an exit code: 0, 1 after an exception or another output than the page
shows, 130 after Ctrl-C.
"""

import doctest
import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w")
NAMES: dict[str, Any] = {"__name__": "__main__"}


def run(page: str, line: int, kind: str, text: str) -> int:
    """Run a snippet with the names of those before it."""
    if kind == "pycon":
        example = doctest.DocTestParser().get_doctest(text, NAMES, page, page, line - 1)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        failed = runner.run(example, clear_globs=False).failed
        NAMES.update(example.globs)
        return int(failed > 0)
    source = "\n" * (line - 1) + text
    linecache.cache[page] = (len(source), None, source.splitlines(keepends=True), page)
    try:
        exec(compile(source, page, "exec"), NAMES)
    except (Exception, SystemExit):  # noqa: BLE001 - whatever a snippet raises is its author's to see
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Answer requests until stdin ends."""
    for name in sys.stdin:
        request = json.loads(Path(name.strip()).read_text())
        output = os.open(request.pop("output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        try:
            code = run(**request)
        except KeyboardInterrupt:
            code = 130
        sys.stdout.flush()
        print(code, file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
