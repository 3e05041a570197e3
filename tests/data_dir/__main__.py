"""Damage a node's data directory in each way, start the node, and write what it does into docs/reliability.md.

python -m tests.data_dir            print each loss in silence; exit code 1 if there is one
python -m tests.data_dir --page     and write the tables
"""

import argparse
import sys

import structlog

from .page import PAGE, page_of
from .table import alone, alone_table, is_bad, pairs, pairs_table


def main() -> int:
    """Do it all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the tables into the page")
    chosen = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # What a start says of torn ends.
    single, double = list(alone()), list(pairs())
    bad = [cell for cell in [*single, *double] if is_bad(cell)]
    for cell in bad:
        print(cell)
    print(f"{len(single)} directories with one damage, {len(double)} with two: {len(bad)} losses in silence")
    if chosen.page:
        page = page_of(PAGE.read_text(), "alone", alone_table(single))
        PAGE.write_text(page_of(page, "in pairs", pairs_table(double)))
    return 1 if bad else 0


sys.exit(main())
