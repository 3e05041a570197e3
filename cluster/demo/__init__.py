"""`quire demo`: three nodes on this machine, the classroom's instructions, one answer.

The classroom's scripts stand in the repository's `examples/` and nowhere else: the demo runs them from there, as
processes of their own, so that the one that checks the answer shares no code with quire.
"""

from .expire import run_expire
from .kill import run_kill
from .lesson import Lesson, run_lesson
from .run import run_demo

__all__ = ["Lesson", "run_demo", "run_expire", "run_kill", "run_lesson"]
