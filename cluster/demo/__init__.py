"""`quire demo`: three nodes on this machine, and what the cluster does when something goes wrong.

The instructions and the program that checks the result are scripts in the repository's `examples/`. The demo runs them
as separate processes, so that the check shares no code with quire.
"""

from .comparison import run_demo
from .expire import run_expire
from .failover import run_failover
from .fault import Fault, run_fault

__all__ = ["Fault", "run_demo", "run_expire", "run_failover", "run_fault"]
