"""What a campaign prints: what was done, what came of it, and what contradicts the promise."""

from collections import Counter
from collections.abc import Iterator

from .checker import INVARIANTS, violations
from .history import Fault, History
from .lives import Lives, is_documented_loss

SHOWN = 20  # findings per invariant


def hits(history: History) -> list[Fault]:
    """Return the faults that hit a statement in flight, or a worker while it ran a job; by the events, unless known."""
    running = [
        (claim.at, end.at if end is not None else float("inf"), claim.actor) for claim, end in Lives(history).runs()
    ]

    def hit(fault: Fault) -> bool:
        if fault.hit is not None:
            return fault.hit
        return any(begun < fault.at < ended and fault.actor in {None, actor} for begun, ended, actor in running)

    return [fault for fault in history.faults if hit(fault)]


def lines(history: History, title: str) -> Iterator[str]:
    """Yield the report, line by line."""
    counted, done = Counter(fault.kind for fault in hits(history)), Counter(fault.kind for fault in history.faults)
    yield title
    yield history.setting
    yield f"faults: {done.total()}, of which {counted.total()} hit a running job or a statement in flight"
    yield f"  {'kind':<18}{'all':>5}{'hit':>6}"
    yield from (f"  {kind:<18}{number:>5}{counted[kind]:>6}" for kind, number in sorted(done.items()))
    yield _count("jobs", Counter(row.status for row in history.rows))
    endings = Counter(end.outcome for end in history.ended)
    reruns = sum(max(row.attempt - 1, 0) for row in history.rows)
    yield f"reruns (attempts after a job's first): {reruns:,}"
    yield f"attempts that did not complete: {_words(endings)}"
    yield (
        f"stale writes: {history.refused:,} refused, {len(history.accepted)} accepted"
        " (what holders of ended claims said too late)"
    )
    tokens = {row.token for row in history.rows}
    made = sum(submission.answer == "unknown" and submission.token in tokens for submission in history.submissions)
    answers = Counter(submission.answer for submission in history.submissions)
    yield f"{_count('submissions', answers)}; of the unknown, whose reply was lost, {made:,} made a job"
    missing = {s.token for s in history.submissions if s.answer == "acknowledged"} - tokens
    documented = sum(is_documented_loss(history, s) for s in history.submissions if s.token in missing)
    claims = {(event.job, event.fence) for event in history.events if event.now == "RUNNING"}
    ghosts = sum((effect.job, effect.fence) not in claims for effect in history.effects if effect.what == "began")
    yield (
        f"what a promoted standby had not received, as documented: {documented} submissions, {ghosts} claims"
        f" ({len(history.promotions)} promotions)"
    )
    yield from later(history)
    yield f"in the end: {', '.join(f'{number:g} {what}' for what, number in history.sizes.items())}"
    stuck = [row for row in history.rows if row.status in {"BLOCKED", "DELAYED", "PENDING", "RUNNING"}]
    yield f"lost: {len(missing) - documented}, stuck: {len(stuck)}"
    yield from verdict(history)


def later(history: History) -> Iterator[str]:
    """Tell what schedules and batches made of themselves."""
    fires = sum(row.schedule is not None for row in history.rows)
    skipped = sum(schedule.skipped for schedule in history.schedules)
    yield f"schedules: {len(history.schedules)}, {fires:,} jobs of fires, {skipped:,} fires skipped"
    lives = Lives(history)
    callbacks = Counter(lives.rows[batch].status for batch in lives.members if batch in lives.rows)
    yield f"{_count('batches', callbacks)}; {sum(map(len, lives.members.values())):,} members"


def verdict(history: History) -> Iterator[str]:
    found = violations(history)
    for name, words in found.items():
        yield f"{name} does not hold: {len(words)} findings"
        yield from (f"  {finding}" for finding in words[:SHOWN])
    if not found:
        yield f"every invariant holds: {', '.join(INVARIANTS)}"


def _count(what: str, numbers: Counter[str]) -> str:
    return f"{what}: {numbers.total():,} ({_words(numbers)})"


def _words(numbers: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in numbers.most_common())
