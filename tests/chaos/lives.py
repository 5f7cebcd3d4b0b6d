"""A history as the invariants ask for it: the moves of each job, its claims, what a promotion may leave unexplained."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from scheduler.states import TRANSITIONS

from .history import FINISHED, Event, History, Promotion, Row, Submission, moves

# What a promotion may leave unexplained: claims of the seconds before it, handlers that began on them some time later.
BEFORE, AFTER = 5.0, 15.0
# A status that stays is no move: what renews or asks to cancel leaves no event.
LEGAL = {
    (str(was), str(now))
    for table in TRANSITIONS.values()
    for was, targets in table.items()
    for now in targets
    if was != now
}
BORN = {"PENDING", "DELAYED", "BLOCKED"}


class Lives:
    """A history, with what several invariants ask: the moves of each job, its claims by attempt."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.moves = dict(moves(history.events))
        self.rows = {row.id: row for row in history.rows}
        self.by_token = defaultdict(list)
        for row in history.rows:
            self.by_token[row.token].append(row)
        self.claims = {job: [move for move in life if move.now == "RUNNING"] for job, life in self.moves.items()}
        self.ended = {(end.job, end.attempt): end for end in history.ended}
        self.members: dict[int, list[int]] = {batch: [] for member, batch in history.members if member == batch}
        for member, batch in history.members:
            if member != batch:
                self.members[batch].append(member)

    def parents(self, row: Row) -> list[int]:
        """Return what a job waits for: the parents it names, its members. An open batch names itself, too."""
        return [parent for parent in (*row.depends_on, *self.members.get(row.id, ())) if parent != row.id]

    def end(self, job: int) -> float:
        """Return the place of a job's end in the order of events; one that has not ended has none."""
        life = self.moves.get(job)
        return life[-1].seq if life and life[-1].now in FINISHED else float("inf")

    def runs(self) -> Iterator[tuple[Event, Event | None]]:
        """Yield every claim with the move that ended it."""
        for life in self.moves.values():
            for move, following in pairwise([*life, None]):
                if move is not None and move.now == "RUNNING":
                    yield move, following


def is_documented_loss(history: History, submission: Submission) -> bool:
    """Tell whether the standby promoted next had not received what was acknowledged."""
    if submission.timeline is None or submission.timeline > len(history.promotions):
        return False
    return submission.written is None or submission.written > history.promotions[submission.timeline - 1].kept


def is_of_a_lost_claim(at: float, promotions: list[Promotion]) -> bool:
    return any(promotion.at - BEFORE < at < promotion.at + AFTER for promotion in promotions)
