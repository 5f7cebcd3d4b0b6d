"""The loop skeleton, on both event loops that a worker may have."""

import asyncio

import pytest
import uvloop

from worker.loops import Loop


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_pass_is_run_when_the_earliest_of_several_moments_has_come(run):
    passes = []

    async def one_pass():
        passes.append(1)
        return 3600.0

    async def main():
        loop = Loop("test", one_pass)
        loop.poke_in(-1.0)  # it is late already
        loop.poke_in(0.0)
        loop.poke_in(3600.0)
        task = asyncio.create_task(loop.run())
        async with asyncio.timeout(20):
            while not passes:
                await asyncio.sleep(0)
            loop.poke_in(3600.0)
            loop.poke_in(0.001)
            while len(passes) < 2:
                await asyncio.sleep(0.001)
        loop.stop()
        await task

    run(main())


async def test_an_outage_of_any_length_does_not_end_a_loop():
    failures = []

    async def one_pass():
        failures.append(1)
        if len(failures) < 2000:
            raise OSError
        return 3600.0

    loop = Loop("test", one_pass, longest=0.0)
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(20):
        while len(failures) < 2000 and not task.done():
            await asyncio.sleep(0)
    loop.stop()
    await task

    assert len(failures) == 2000
