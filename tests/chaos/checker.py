"""The invariants of a history, checked offline: each is a function that yields what contradicts it.

Rows that an asynchronous standby had not received when it was promoted are gone, with their events; what is
acknowledged and gone is lost, unless the WAL shows that it was written after the point where the new primary goes on.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from .history import EXACTLY_ONCE, FINISHED, RECURRING, History
from .later import a_callback_comes_last, a_delay_follows_its_job, fires_are_named, no_fire_is_left_out
from .lives import BORN, LEGAL, Lives, is_documented_loss, is_of_a_lost_claim

Finding = Iterator[str]
# What must stay small, whatever happens. A worker takes some 50 MB.
BOUNDS = {"megabytes of memory of a worker": 256.0, "percent of the queue of notices": 0.01}


def no_job_is_lost(lives: Lives) -> Finding:
    """I1: an acknowledged submission has exactly one job, another one at most one, a refused one none.

    Of the jobs of one call all exist, or none.
    """
    for submission in lives.history.submissions:
        jobs = lives.by_token[submission.token]
        if len(jobs) > 1:
            yield f"submission {submission.token} made {len(jobs)} jobs"
        elif jobs and submission.answer == "refused":
            yield f"submission {submission.token} was refused, and made job {jobs[0].id}"
        elif not jobs and submission.answer == "acknowledged" and not is_documented_loss(lives.history, submission):
            yield f"submission {submission.token}, acknowledged as job {submission.job}, is lost"
        elif (
            jobs and submission.job is not None and jobs[0].id != submission.job and len(lives.history.promotions) == 0
        ):
            yield f"submission {submission.token} was told {submission.job}, and made job {jobs[0].id}"
    calls = defaultdict(list)
    for submission in lives.history.submissions:
        if submission.call is not None:
            calls[submission.call].append(bool(lives.by_token[submission.token]))
    yield from (
        f"of the {len(made)} jobs of call {call} there are {sum(made)}"
        for call, made in calls.items()
        if any(made) and not all(made)
    )


def one_claim_at_a_time(lives: Lives) -> Finding:
    """I2: a job goes from state to state as the table says, so it is claimed when nobody holds it."""
    for job, life in lives.moves.items():
        for before, move in zip([None, *life], life, strict=False):
            if before is None:
                if move.was is not None or move.now not in BORN:
                    yield f"job {job} began its life with {move.was} -> {move.now}"
            elif before.now != move.was:
                yield f"job {job} was {before.now}, and then {move.was}"
            elif move.was not in FINISHED and (move.was, move.now) not in LEGAL:
                yield f"job {job} went {move.was} -> {move.now}"
    for row in lives.history.rows:
        life = lives.moves.get(row.id)
        if not life or life[-1].now != row.status:
            yield f"job {row.id} is {row.status}, but its last move says {life[-1].now if life else 'nothing'}"


def fences_only_grow(lives: Lives) -> Finding:
    """I3, claims: each has a greater fence than the one before; no two executions ever had the same."""
    for job, claims in lives.claims.items():
        for before, claim in pairwise(claims):
            if (claim.fence or 0) <= (before.fence or 0):
                yield f"job {job}: fence {claim.fence} follows fence {before.fence}"
    begun = Counter((effect.job, effect.fence) for effect in lives.history.effects if effect.what == "began")
    yield from (f"job {job}: {n} executions had fence {fence}" for (job, fence), n in begun.items() if n > 1)


def only_the_holder_writes(lives: Lives) -> Finding:
    """I3, writes: a claim is ended by its holder, or by a reaper after its lease; an outcome is that of its attempt."""
    for claim, end in lives.runs():
        if end is None:
            continue
        told = lives.ended.get((claim.job, claim.attempt))
        if (end.worker, end.fence) != (claim.worker, claim.fence):
            yield f"job {claim.job}: claim {claim.fence} was ended as claim {end.fence}"
        elif told is not None and (told.outcome == "lost" or (told.outcome == "released" and end.actor != claim.actor)):
            if end.lease is None or end.lease > end.at:
                yield f"job {claim.job}: claim {claim.fence} was reaped before its lease had lapsed"
        elif end.actor != claim.actor:
            yield f"job {claim.job}: {end.actor} ended a claim of {claim.actor}, fence {claim.fence}"
        if told is not None and told.error_fence not in {None, claim.fence}:
            yield f"job {claim.job}: the error of fence {told.error_fence} was recorded for fence {claim.fence}"
    for row in lives.history.rows:
        if row.status == "COMPLETED" and row.result_fence != row.fence:
            yield f"job {row.id}: the result of fence {row.result_fence} was accepted under fence {row.fence}"
    yield from lives.history.accepted


def the_end_is_the_end(lives: Lives) -> Finding:
    """I4: nothing leaves a final status, but by an operator's hand."""
    for job, life in lives.moves.items():
        for move in life:
            if move.was in FINISHED and move.actor != "operator":
                yield f"job {job} left {move.was} for {move.now}, by {move.actor}"


def attempts_are_accounted_for(lives: Lives) -> Finding:
    """I5: every claim is counted, every one that did not complete is on record, and no limit is passed."""
    endings: dict[int, Counter[str]] = defaultdict(Counter)
    for end in lives.history.ended:
        endings[end.job][end.outcome] += 1
    for row in lives.history.rows:
        claims, ended = len(lives.claims.get(row.id, ())), endings[row.id]
        failed = ended["failed"] + ended["timed_out"]
        if row.attempt != claims:
            yield f"job {row.id} counts {row.attempt} attempts and was claimed {claims} times"
        if row.status in FINISHED and ended.total() != claims - (row.status == "COMPLETED"):
            yield f"job {row.id} ({row.status}) was claimed {claims} times, {ended.total()} attempts are on record"
        if row.crashes != ended["lost"]:
            yield f"job {row.id} counts {row.crashes} crashes, {ended['lost']} are on record"
        if row.failures not in {failed, failed - (row.status == "CANCELLED")}:
            yield f"job {row.id} counts {row.failures} failures, {failed} are on record"
        if row.failures > row.max_attempts or row.crashes > row.max_crashes + 1:
            yield f"job {row.id} passed a limit: {row.failures} failures, {row.crashes} crashes"


def nothing_is_stuck(lives: Lives) -> Finding:
    """I6: when all is healed, everything ends, and every child takes notice of its parents."""
    yield from (f"job {row.id} is still {row.status}" for row in lives.history.rows if row.status not in FINISHED)
    yield from (f"job {child} took no notice of the end of job {parent}" for parent, child in lives.history.edges)


def children_come_after_their_parents(lives: Lives) -> Finding:
    """I7: no claim before all parents have ended, and where the policy is cancel, none when one did not complete."""
    last = {job: life[-1] for job, life in lives.moves.items()}
    for row in lives.history.rows:
        claims = lives.claims.get(row.id, ())
        failed = [p for p in lives.parents(row) if p in lives.rows and lives.rows[p].status != "COMPLETED"]
        for parent in lives.parents(row):
            if claims and parent in last and last[parent].seq > claims[0].seq:
                yield f"job {row.id} was claimed before its parent {parent} had ended"
        if row.on_parent_failure == "cancel" and failed and (claims or row.status != "CANCELLED"):
            yield f"job {row.id} is {row.status}, though its parent {failed[0]} did not complete"
        if row.cancelled_by is not None and not (failed and row.on_parent_failure == "cancel"):
            yield f"job {row.id} was cancelled by job {row.cancelled_by}, though its parents allowed it to run"


def keys_are_unique(lives: Lives) -> Finding:
    """I10: one unfinished job per unique key, one job per idempotency key."""
    by_key = defaultdict(list)
    for row in lives.history.rows:
        if row.idempotency_key is not None:
            by_key[row.kind, row.idempotency_key].append(row.id)
    yield from (f"jobs {ids} share the idempotency key {key}" for (_, key), ids in by_key.items() if len(ids) > 1)
    holders, keyed = {}, {row.id: row for row in lives.history.rows if row.unique_key is not None}
    every_move = sorted((move for job in keyed for move in lives.moves.get(job, ())), key=lambda move: move.seq)
    for move in every_move:
        row = keyed[move.job]
        key = row.kind, row.unique_key
        if move.now in FINISHED:
            holders.pop(key, None)
        elif holders.setdefault(key, row.id) != row.id:
            yield f"jobs {holders[key]} and {row.id} held the unique key {row.unique_key} at once"


def effects_have_a_claim(lives: Lives) -> Finding:
    """I12: what completed was executed, under the fence it completed with; nothing was executed without a claim.

    What a handler wrote in the transaction that completes its job is there exactly once, if and only if that completed.
    """
    claimed = {(claim.job, claim.fence) for claims in lives.claims.values() for claim in claims}
    finished = {(effect.job, effect.fence) for effect in lives.history.effects if effect.what == "finished"}
    for row in lives.history.rows:
        if row.status == "COMPLETED" and (row.id, row.fence) not in finished:
            yield f"job {row.id} completed under fence {row.fence}, and its handler did not"
    for effect in lives.history.effects:
        if (effect.job, effect.fence) not in claimed and not is_of_a_lost_claim(effect.at, lives.history.promotions):
            yield f"job {effect.job} was executed under fence {effect.fence}, which nobody claimed"
    completed = {(row.id, row.fence) for row in lives.history.rows if row.status == "COMPLETED"}
    written = Counter(lives.history.written)
    due = {(row.id, row.fence) for row in lives.history.rows if row.kind == EXACTLY_ONCE} & completed
    yield from (f"job {job} wrote {n} times under fence {fence}" for (job, fence), n in written.items() if n > 1)
    yield from (
        f"job {job} wrote under fence {fence}, and did not complete" for job, fence in written.keys() - completed
    )
    yield from (f"job {job} completed under fence {fence}, and wrote nothing" for job, fence in due - written.keys())


def effects_are_explained(lives: Lives) -> Finding:
    """I12: a handler that came to its end completed its job, unless the record shows that it was stopped or lost."""
    claimed = {(claim.job, claim.fence): claim.attempt for claims in lives.claims.values() for claim in claims}
    for effect in lives.history.effects:
        attempt = claimed.get((effect.job, effect.fence))
        told = lives.ended.get((effect.job, attempt or 0))
        own = effect.job in lives.rows and lives.rows[effect.job].kind == EXACTLY_ONCE
        if effect.what == "finished" and told is not None and told.outcome in {"failed", "snoozed"} and not own:
            yield f"job {effect.job} came to its end under fence {effect.fence}, and that attempt is {told.outcome}"


def nothing_is_left_over(lives: Lives) -> Finding:
    """I13: no session, lock or process outlives its worker, and no worker ends unasked."""
    yield from lives.history.left_over


def what_is_bounded_stays_so(lives: Lives) -> Finding:
    """I14: nothing that should stay small has grown."""
    for what, most in BOUNDS.items():
        if lives.history.sizes.get(what, 0) > most:
            yield f"{lives.history.sizes[what]:g} {what}, at most {most:g} are allowed"


def everything_ends_as_it_should(lives: Lives) -> Finding:
    """I15: whatever happens around it, a job ends as its handler says: faults and neighbours fail nobody."""
    expected = {submission.token: submission.ends for submission in lives.history.submissions}
    expected[RECURRING] = ("COMPLETED",)
    for row in lives.history.rows:
        cancelled = row.status == "CANCELLED" and row.cancelled_by is not None
        crashed = row.status == "FAILED" and row.crashes > row.max_crashes
        if row.status in FINISHED and row.status not in expected.get(row.token, ()) and not (cancelled or crashed):
            yield f"job {row.id} ended {row.status}, not {' or '.join(expected.get(row.token, ()))}"


INVARIANTS: dict[str, tuple[Callable[[Lives], Finding], ...]] = {
    "I1": (no_job_is_lost,),
    "I2": (one_claim_at_a_time,),
    "I3": (fences_only_grow, only_the_holder_writes),
    "I4": (the_end_is_the_end,),
    "I5": (attempts_are_accounted_for,),
    "I6": (nothing_is_stuck,),
    "I7": (children_come_after_their_parents,),
    "I8": (fires_are_named, no_fire_is_left_out, a_delay_follows_its_job),
    "I10": (keys_are_unique,),
    "I11": (a_callback_comes_last,),
    "I12": (effects_have_a_claim, effects_are_explained),
    "I13": (nothing_is_left_over,),
    "I14": (what_is_bounded_stays_so,),
    "I15": (everything_ends_as_it_should,),
}


def violations(history: History) -> dict[str, list[str]]:
    """Return what contradicts each invariant; an invariant that holds is left out."""
    lives = Lives(history)
    found = {name: [words for rule in rules for words in rule(lives)] for name, rules in INVARIANTS.items()}
    return {name: words for name, words in found.items() if words}
