"""A loop runs its pass when it is poked, on the event loop of asyncio and on that of the command."""

import asyncio

import pytest
import uvloop

from worker.loops import Loop


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_poke_in_no_time_at_all_is_a_poke(run, caplog):
    """uvloop's handle of a call that is due at once has no when()."""
    runs = []

    async def one_pass():
        runs.append(True)
        if len(runs) == 3:
            loop.stop()
        for seconds in (5.0, 0.0, 0.0, -1.0):
            loop.poke_in(seconds)
        return 60.0

    async def main():
        async with asyncio.timeout(20):
            await loop.run()

    loop = Loop("test", one_pass)
    run(main())

    assert len(runs) == 3
    assert caplog.text == ""
