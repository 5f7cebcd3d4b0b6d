"""What begins attempts, against executors that cannot."""

from uuid import uuid4

from worker.attempt import Leases
from worker.running import Running
from worker.settler import Settler

ROW = {
    "id": 1, "kind": "k", "queue": "q", "tenant": "", "attempt": 1, "failures": 0, "fence": 1, "timeout": 1.0,
    "idempotency_key": None, "metadata": None, "fire_time": None, "parents": None, "payload": "{}",
}  # fmt: skip


class NoThreads:
    name = "process"

    def start(self, _attempt):
        raise RuntimeError("can't start new thread")


async def test_a_job_that_cannot_be_started_fails_alone_and_the_next_row_is_begun():
    leases = Leases()
    outbox = Settler(None, uuid4(), leases, lambda _: None, lambda: None)
    running = Running("w", {}, leases, outbox)

    for job_id in (1, 2):
        running.begin(NoThreads(), {**ROW, "id": job_id}, 0.0)
    running.close()

    assert len(outbox) == 2
    assert await running.wait(0)
