"""Settings are checked once, against each other, with the reason in the message."""

from datetime import timedelta

import pytest

from scheduler.errors import ConfigurationError
from scheduler.settings import WorkerSettings, dsn_from


def seconds(number):
    return timedelta(seconds=number)


def test_the_dsn_given_goes_before_that_of_the_environment():
    environment = {"SCHEDULER_DSN": "postgresql://of/environment"}

    assert dsn_from("postgresql://given/here", environment) == "postgresql://given/here"
    assert dsn_from(None, environment) == "postgresql://of/environment"


@pytest.mark.parametrize("environment", [{}, {"SCHEDULER_DSN": ""}])
def test_without_a_dsn_one_sentence_names_both_ways_in(environment):
    with pytest.raises(ConfigurationError) as caught:
        dsn_from(None, environment)

    assert "SCHEDULER_DSN" in str(caught.value)
    assert "postgresql://" in str(caught.value)
    assert "embedded:" in str(caught.value)


def test_the_defaults_agree_with_each_other():
    settings = WorkerSettings()

    assert settings.heartbeat == seconds(10)
    assert settings.lease == seconds(30)


def test_the_heartbeat_is_a_third_of_the_lease_unless_set():
    assert WorkerSettings(lease=seconds(12)).heartbeat == seconds(4)
    assert WorkerSettings(lease=seconds(12), renew_every=seconds(1)).heartbeat == seconds(1)


def test_f60_a_heartbeat_that_does_not_fit_three_times_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError) as caught:
        WorkerSettings(lease=seconds(30), renew_every=seconds(20))

    assert str(caught.value) == (
        "renew_every (20 s) must fit three times in lease (30 s): one missed renewal is not a lost job"
    )


@pytest.mark.parametrize("renew_every", [timedelta(0), seconds(-1), 5])
def test_a_heartbeat_must_be_a_duration_of_more_than_nothing(renew_every):
    with pytest.raises(ConfigurationError, match="renew_every"):
        WorkerSettings(renew_every=renew_every)


@pytest.mark.parametrize("lease", [timedelta(0), seconds(0.5), seconds(-5), timedelta(hours=2), 30, None])
def test_a_lease_out_of_its_range_is_refused(lease):
    with pytest.raises(ConfigurationError, match=r"^lease"):
        WorkerSettings(lease=lease)


@pytest.mark.parametrize("lease", [seconds(1), timedelta(hours=1)])
def test_the_bounds_of_a_lease_are_allowed(lease):
    assert WorkerSettings(lease=lease).lease == lease


@pytest.mark.parametrize("grace", [seconds(-1), 30, "30", None])
def test_a_grace_that_is_no_duration_is_refused(grace):
    with pytest.raises(ConfigurationError, match=r"^grace"):
        WorkerSettings(grace=grace)


def test_no_grace_is_allowed():
    assert WorkerSettings(grace=timedelta(0)).grace == timedelta(0)


@pytest.mark.parametrize("poll", [timedelta(0), seconds(0.001), seconds(-1), 1, None])
def test_a_poll_that_would_be_a_busy_loop_is_refused(poll):
    with pytest.raises(ConfigurationError, match=r"^poll"):
        WorkerSettings(poll=poll)


@pytest.mark.parametrize("name", ["async_slots", "threads", "processes"])
@pytest.mark.parametrize("slots", [-1, 10_001, 1.5, "3", True, None])
def test_slots_must_be_a_number_that_a_process_can_hold(name, slots):
    with pytest.raises(ConfigurationError, match=f"^{name} must be a whole number"):
        WorkerSettings(**{name: slots})


@pytest.mark.parametrize("slots", [0, 10_000])
def test_the_bounds_of_slots_are_allowed(slots):
    assert WorkerSettings(threads=slots).threads == slots


@pytest.mark.parametrize("name", ["child_memory", "child_jobs"])
@pytest.mark.parametrize("value", [-1, 1.5, True, None, "256", 10**10])
def test_the_limits_of_a_child_are_whole_numbers(name, value):
    with pytest.raises(ConfigurationError, match=rf"{name} must be 0 \(no limit\) or a whole number from"):
        WorkerSettings(**{name: value})


def test_a_child_needs_memory_for_itself():
    with pytest.raises(ConfigurationError, match=r"child_memory must be 0 .* from 64 to"):
        WorkerSettings(child_memory=63)

    assert WorkerSettings(child_memory=64, child_jobs=1).child_memory == 64


@pytest.mark.parametrize("queue", ["", "two words", "x" * 101, "ä"])
def test_a_queue_that_no_row_could_name_is_refused(queue):
    with pytest.raises(ConfigurationError, match="queues"):
        WorkerSettings(queues=("default", queue))


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        WorkerSettings().lease = seconds(1)
