"""Which manifests a backup keeps, and how far back each one reaches. Pure functions of the manifests.

Of each chain, the last manifest of each minute is kept for an hour, of each hour for two days, of each day after that,
up to `keep` (without it, for ever). The newest one always stays. Ages are relative to the newest.

A manifest reaches back to a snapshot at or below the end of one that is older than two days (`base_of`). So, whichever
of its day is kept, the kept manifests of a chain still hold every record from the first one's beginning on: thinning
makes restoring slower to describe, but makes no index impossible.
"""

from collections.abc import Iterable, Sequence

from .manifest import Manifest

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
EACH_MINUTE_US = HOUR_US
EACH_HOUR_US = 2 * DAY_US
ORPHAN_S = 86_400.0
"""A file that no manifest names is deleted once it is this old: a run that will name it may still be under way."""


def thinned(manifests: Sequence[Manifest], keep_us: int | None) -> list[Manifest]:
    """The manifests that are no longer kept."""
    if not manifests:
        return []
    newest = max(manifests, key=lambda manifest: manifest.number)
    last: dict[tuple[int, int, int], Manifest] = {}
    for manifest in sorted(manifests, key=lambda manifest: manifest.number):
        age = max(0, newest.time - manifest.time)
        if keep_us is None or age <= keep_us or manifest is newest:
            bucket = MINUTE_US if age <= EACH_MINUTE_US else HOUR_US if age <= EACH_HOUR_US else DAY_US
            last[manifest.chain, bucket, manifest.time // bucket] = manifest
    kept = {manifest.number for manifest in last.values()}
    return [manifest for manifest in manifests if manifest.number not in kept]


def base_of(manifests: Iterable[Manifest], chain: int, now: int, snapshots: Iterable[int]) -> int:
    """Where the next manifest of a chain may begin: at one of its snapshots, or 0 if it must keep its beginning.

    `now` is its time, `snapshots` are the indices of the chain's snapshots that the last manifest has.
    """
    older = [manifest for manifest in manifests if manifest.chain == chain and now - manifest.time > EACH_HOUR_US]
    if not older:
        return 0
    end = max(older, key=lambda manifest: manifest.number).end.index
    return max((index for index in snapshots if index <= end), default=0)
