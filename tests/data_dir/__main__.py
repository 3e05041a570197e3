"""Damage a node's data directory in each way, start the node, and print each loss in silence.

python -m tests.data_dir            exit code 1 if there is a loss
python -m tests.data_dir --page     and write the table of single damages
"""

import argparse
import sys

import structlog

from .page import PAGE, page_of
from .table import alone, alone_table, is_bad, pairs


def main() -> int:
    """Do it all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the table into the page")
    chosen = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # What a start says of torn ends.
    single, double = list(alone()), list(pairs())
    bad = [cell for cell in [*single, *double] if is_bad(cell)]
    for cell in bad:
        print(cell)
    print(f"{len(single)} directories with one damage, {len(double)} with two: {len(bad)} losses in silence")
    if chosen.page:
        PAGE.write_text(page_of(PAGE.read_text(), alone_table(single)))
    return 1 if bad else 0


sys.exit(main())
