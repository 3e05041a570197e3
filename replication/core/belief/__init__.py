"""Rules 18 and 19: which messages of peers are plausible. No field is trusted just because its sender is a member."""

from .epochs import EPOCH_LIMIT, EPOCH_REACH, EPOCH_STEP, Refusal, highest_epoch, judge
from .leaders import refuses
from .reaching import Reaching

__all__ = ["EPOCH_LIMIT", "EPOCH_REACH", "EPOCH_STEP", "Reaching", "Refusal", "highest_epoch", "judge", "refuses"]
