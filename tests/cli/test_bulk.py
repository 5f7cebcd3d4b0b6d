"""The commands cancel, retry and prune."""

from .commands import claim, column, declare


async def test_cancel_says_what_happened_to_each(run, submit, db):
    await declare(db, "k")
    running = submit("k")
    await claim(db, "k")
    parent = submit("k")
    child = submit("k", "--depends-on", parent)

    first = run("cancel", parent, running)
    second = run("cancel", parent, 999, 998, parent)

    assert vars(first) == {"code": 0, "out": f"{parent} cancelled\n{running} asked to stop\n", "err": ""}
    assert (second.code, second.out) == (1, f"{parent} had ended before\n")
    assert [line.split(",")[0] for line in second.err.splitlines()] == [
        "scheduler: job 999 does not exist",
        "scheduler: job 998 does not exist",
    ]
    assert column(run("jobs").out, "status") == ["CANCELLED", "CANCELLED", "RUNNING"]
    assert f"cancelled by  {parent}" in run("job", child).out
    assert "asked to stop" in run("jobs", "--status", "running").out
