"""Which manifests a backup keeps, and how far back each one reaches. Pure functions of the manifests.

Of each chain, the last manifest of each minute is kept for an hour, of each hour for two days, of each day after that,
up to `keep` (without it, for ever). The newest one always stays.

Ages are by the cluster's clock, which each run asks for. A manifest that a run with a wrong clock wrote has a time that
is not reached yet: its last frame's time counts instead, and if that is not reached either, it is of age 0.

What is no longer kept goes in two steps: the run's manifest names it (`Manifest.thinned`), and the next run deletes it
if it comes to the same. In between it can be restored as before.

A manifest reaches back to a snapshot at or below the end of one that is older than two days (`base_of`). So, whichever
of its day is kept, the kept manifests of a chain still hold every record from the first one's beginning on: thinning
makes restoring slower to describe, but makes no index impossible. A run with a wrong clock may have written one that
reaches back less far; the last one before it then stays, too (`_joining`).
"""

from collections.abc import Iterable, Sequence

from .manifest import Manifest

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
EACH_MINUTE_US = HOUR_US
EACH_HOUR_US = 2 * DAY_US
MAX_SKEW_US = HOUR_US
"""No clock that is right differs by more. A run for which one does deletes nothing."""
ORPHAN_S = 86_400.0
"""A file that no manifest names is deleted once it is this old: a run that will name it may still be under way."""


def time_of(manifest: Manifest, now: int) -> int:
    """When a manifest was written, as far as its times can be right at `now` by the cluster's clock."""
    reached = [time for time in (manifest.time, manifest.end.timestamp) if time <= now + MAX_SKEW_US]
    return max(reached, default=now)


def thinned(manifests: Sequence[Manifest], now: int, keep_us: int | None) -> list[Manifest]:
    """The manifests that are no longer kept at `now` by the cluster's clock."""
    if not manifests:
        return []
    ordered = sorted(manifests, key=lambda manifest: manifest.number)
    newest, expired = ordered[-1], set[int]()
    last: dict[tuple[int, int, int], Manifest] = {}
    for manifest in ordered:
        time = time_of(manifest, now)
        age = now - time
        if keep_us is None or age <= keep_us or manifest is newest:
            bucket = MINUTE_US if age <= EACH_MINUTE_US else HOUR_US if age <= EACH_HOUR_US else DAY_US
            last[manifest.chain, bucket, time // bucket] = manifest
        else:
            expired.add(manifest.number)
    kept = {manifest.number for manifest in last.values()}
    kept |= _joining(ordered, kept, expired)
    return [manifest for manifest in manifests if manifest.number not in kept]


def _joining(manifests: Sequence[Manifest], kept: set[int], expired: set[int]) -> set[int]:
    """The numbers of those without which the kept manifests of their chain would not join. `manifests` are in order."""
    joining, settled, after = set[int](), kept | expired, dict[int, Manifest]()
    for place in reversed(range(len(manifests))):
        manifest = manifests[place]
        chain = manifest.chain
        if manifest.number not in settled and chain in after and manifest.base < after[chain].base:
            ends = [each.end.index for each in manifests[:place] if each.chain == chain and each.number in settled]
            if max(ends, default=0) < after[chain].base:
                joining.add(manifest.number)
        if manifest.number in kept | joining:
            after[chain] = manifest
    return joining


def base_of(manifests: Iterable[Manifest], chain: int, now: int, snapshots: Iterable[int]) -> int:
    """Where the next manifest of a chain may begin: at one of its snapshots, or 0 if it must keep its beginning.

    `now` is its time, `snapshots` are the indices of the chain's snapshots that the last manifest has.
    """
    of_chain = [manifest for manifest in manifests if manifest.chain == chain]
    older = [manifest for manifest in of_chain if now - time_of(manifest, now) > EACH_HOUR_US]
    if not older:
        return 0
    end = max(older, key=lambda manifest: manifest.number).end.index
    return max((index for index in snapshots if index <= end), default=0)
