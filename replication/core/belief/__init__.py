"""Rules 18 and 19: what a peer's word is worth. No field of a message is trusted because its sender is a member."""

from .epochs import EPOCH_LIMIT, EPOCH_REACH, EPOCH_STEP, Refusal, highest_epoch, judge
from .leaders import refuses
from .reaching import Reaching

__all__ = ["EPOCH_LIMIT", "EPOCH_REACH", "EPOCH_STEP", "Reaching", "Refusal", "highest_epoch", "judge", "refuses"]
