"""Job classes are checked when they are created, and say what was set."""

import json
from datetime import timedelta

import msgspec
import pytest

from scheduler.errors import ConfigurationError
from scheduler.job import (
    KINDS,
    QUEUES,
    AsyncJob,
    BlockingJob,
    CpuBoundJob,
    Job,
    JobMeta,
    Priority,
    Queue,
    Retry,
    queue_declaration,
    to_declaration,
)


@pytest.fixture(autouse=True)
def empty_registries():
    kinds, queues = dict(KINDS), dict(QUEUES)
    KINDS.clear()
    QUEUES.clear()
    yield
    KINDS.clear()
    KINDS.update(kinds)
    QUEUES.clear()
    QUEUES.update(queues)


async def run_async(self, ctx): ...


def run_plain(self, ctx): ...


async def run_generator(self, ctx):
    yield 1


def make(base=AsyncJob, run=run_async, name="SendEmail", module=__name__, fields=None, **options):
    """Create a job class as a class statement would."""
    body = {"__module__": module, "__qualname__": name, "__annotations__": fields or {}}
    if run is not None:
        body["run"] = run
    return JobMeta(name, (base,) if isinstance(base, type) else base, body, **options)


def test_options_hold_what_the_class_set_and_none_for_the_rest():
    job = make(kind="send_email", queue="mail", timeout=timedelta(seconds=30))

    assert job.options.kind == "send_email"
    assert job.options.queue == "mail"
    assert job.options.timeout == timedelta(seconds=30)
    assert (job.options.priority, job.options.retry, job.options.idempotency_window) == (None, None, None)


def test_the_kind_is_the_name_of_the_class_unless_given():
    assert make().options.kind == "SendEmail"
    assert make(name="Other", kind="other.job:v2").options.kind == "other.job:v2"


@pytest.mark.parametrize(
    ("base", "run", "executor"),
    [(AsyncJob, run_async, "async"), (BlockingJob, run_plain, "thread"), (CpuBoundJob, run_plain, "process")],
)
def test_the_base_class_chooses_the_executor(base, run, executor):
    assert make(base, run).options.executor == executor


def test_a_job_is_frozen_and_refuses_unknown_fields():
    job = make(fields={"to": str})(to="a")

    with pytest.raises(AttributeError):
        job.to = "b"
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode('{"to": "a", "cc": "b"}', type=type(job))


def test_msgspec_keywords_are_handed_on():
    job = make(fields={"file_path": str}, rename="camel", kw_only=True, forbid_unknown_fields=False)

    assert msgspec.json.encode(job(file_path="a")) == b'{"filePath":"a"}'
    assert not job.__struct_config__.forbid_unknown_fields


def test_a_subclass_inherits_options_but_not_the_kind():
    base = make(run=None, name="MailJob", kind="base", queue="mail", priority=2, timeout=timedelta(seconds=9))
    job = make(base, priority=-1)

    assert job.options.kind == "SendEmail"
    assert (job.options.queue, job.options.priority, job.options.timeout) == ("mail", -1, timedelta(seconds=9))


def test_the_first_of_several_parents_wins():
    first = make(run=None, name="First", queue="first")
    second = make(run=None, name="Second", queue="second", priority=3)

    options = make((first, second)).options

    assert (options.queue, options.priority) == ("first", 3)


def test_a_class_without_run_is_abstract_and_not_registered():
    make(run=None)

    assert KINDS == {}


def test_a_class_with_run_is_registered_by_its_kind():
    job = make(kind="send_email")

    assert {"send_email": job} == KINDS


def test_two_classes_of_one_kind_are_refused_with_both_paths():
    first = make(module="shop.jobs", kind="send")

    with pytest.raises(ConfigurationError, match=r"'send' is taken by shop\.jobs\.SendEmail, so mail\.jobs\.SendEmail"):
        make(module="mail.jobs", kind="send")

    assert {"send": first} == KINDS


def test_a_module_imported_again_replaces_its_classes():
    make()
    again = make()

    assert {"SendEmail": again} == KINDS


WORDS = "must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -"


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("timeout", timedelta(0), "timeout must be more than 0 and at most 30 days"),
        ("timeout", timedelta(seconds=-1), "timeout must be more than 0 and at most 30 days"),
        ("timeout", timedelta(days=30, microseconds=1), "timeout must be more than 0 and at most 30 days"),
        ("timeout", 30, "timeout must be a timedelta, not int"),
        ("idempotency_window", timedelta(0), "idempotency_window must be more than 0 and at most 366 days"),
        ("idempotency_window", timedelta(days=367), "idempotency_window must be more than 0 and at most 366 days"),
        ("priority", 101, "priority must be from -100 to 100"),
        ("priority", -101, "priority must be from -100 to 100"),
        ("priority", 1.0, "priority must be a whole number, not float"),
        ("priority", True, "priority must be a whole number, not bool"),
        ("priority", "HIGH", "priority must be a whole number, not str"),
        ("kind", "", f"kind {WORDS}"),
        ("kind", "a b", f"kind {WORDS}"),
        ("kind", "a\n", f"kind {WORDS}"),
        ("kind", "k" * 101, f"kind {WORDS}"),
        ("kind", 5, f"kind {WORDS}"),
        ("queue", "é", f"queue {WORDS}"),
        ("retry", 5, "retry must be a Retry(...), not int"),
        ("retry", Retry(max_attempts=0), "retry.max_attempts must be from 1 to 1000000"),
        ("retry", Retry(max_attempts=2.0), "retry.max_attempts must be a whole number, not float"),
        ("retry", Retry(max_crashes=-1), "retry.max_crashes must be from 0 to 1000000"),
        ("retry", Retry(base=timedelta(0)), "retry.base must be more than 0 and at most 30 days"),
        ("retry", Retry(cap=timedelta(days=31)), "retry.cap must be more than 0 and at most 30 days"),
        ("retry", Retry(base=1), "retry.base must be a timedelta, not int"),
        ("retry", Retry(base=timedelta(hours=2)), "retry.base must not exceed retry.cap"),
        ("retry", Retry(jitter=1), "retry.jitter must be True or False"),
    ],
)
def test_a_bad_option_is_refused_in_one_sentence(option, value, rule):
    with pytest.raises(ConfigurationError) as caught:
        make(**{option: value})

    assert str(caught.value) == f"SendEmail: {rule}"
    assert KINDS == {}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", timedelta(days=30)),
        ("timeout", timedelta(microseconds=1)),
        ("idempotency_window", timedelta(days=366)),
        ("priority", -100),
        ("priority", 100),
        ("priority", Priority.CRITICAL),
        ("kind", "k" * 100),
        ("queue", "A-z_0.9:x"),
        ("retry", Retry(max_attempts=1, max_crashes=0, base=timedelta(days=30), cap=timedelta(days=30))),
    ],
)
def test_the_extremes_of_each_option_are_allowed(option, value):
    assert getattr(make(**{option: value}).options, option) == value


def test_a_misspelt_option_is_answered_with_the_right_one():
    with pytest.raises(ConfigurationError) as caught:
        make(qeue="mail")

    assert str(caught.value) == "unknown option 'qeue' of SendEmail: did you mean 'queue'?"


def test_an_option_like_no_other_is_answered_with_all_of_them():
    with pytest.raises(ConfigurationError, match="'zzz' of SendEmail: options are kind, queue, priority, timeout"):
        make(zzz=1)


@pytest.mark.parametrize(("keyword", "value"), [("frozen", False), ("array_like", True)])
def test_a_job_stays_an_immutable_object(keyword, value):
    with pytest.raises(ConfigurationError, match=f"SendEmail: {keyword} is always"):
        make(**{keyword: value})


@pytest.mark.parametrize("field", ["run", "options"])
def test_a_field_with_a_name_of_ours_is_refused(field):
    with pytest.raises(ConfigurationError, match=f"'{field}' is part of every job class"):
        make(run=None, fields={field: str})


def test_options_cannot_be_set_in_the_body():
    with pytest.raises(ConfigurationError, match="'options' is set by the class keywords"):

        class SendEmail(AsyncJob):
            options = 3


@pytest.mark.parametrize(
    ("base", "run", "way_out"),
    [
        (AsyncJob, run_plain, "must be `async def`; plain code belongs in a BlockingJob (a thread) or a CpuBoundJob"),
        (AsyncJob, run_generator, "run of an AsyncJob must be `async def`"),
        (BlockingJob, run_async, "run of a BlockingJob must be a plain `def`; `async def` belongs in an AsyncJob"),
        (BlockingJob, run_generator, "run of a BlockingJob must be a plain `def`"),
        (CpuBoundJob, run_async, "run of a CpuBoundJob must be a plain `def`; `async def` belongs in an AsyncJob"),
    ],
)
def test_a_run_of_the_wrong_kind_is_refused_with_the_right_base(base, run, way_out):
    with pytest.raises(ConfigurationError) as caught:
        make(base, run)

    assert way_out in str(caught.value)


@pytest.mark.parametrize("run", [lambda self: None, lambda self, ctx, more: None, staticmethod(lambda ctx: None), 3])
def test_a_run_that_cannot_be_called_with_a_context_is_refused(run):
    with pytest.raises(ConfigurationError, match=r"SendEmail: run must take exactly \(self, ctx\)"):
        make(BlockingJob, run)


@pytest.mark.parametrize("bases", [(Job,), (AsyncJob, BlockingJob)])
def test_a_job_has_exactly_one_executor(bases):
    with pytest.raises(ConfigurationError, match="derive from one of AsyncJob, BlockingJob or CpuBoundJob"):
        make(bases, run=None)


def test_a_declaration_holds_only_what_the_class_set():
    assert to_declaration(make()) == {"kind": "SendEmail", "executor": "async"}


def test_a_declaration_gives_durations_in_seconds_and_survives_json():
    job = make(
        BlockingJob,
        run_plain,
        queue="mail",
        priority=Priority.HIGH,
        timeout=timedelta(milliseconds=1500),
        retry=Retry(max_attempts=2, cap=timedelta(minutes=1), jitter=False),
        idempotency_window=timedelta(days=1),
    )

    assert json.loads(json.dumps(to_declaration(job))) == {
        "kind": "SendEmail",
        "executor": "thread",
        "queue": "mail",
        "priority": 2,
        "timeout": 1.5,
        "max_attempts": 2,
        "max_crashes": 3,
        "retry_base": 1,
        "retry_cap": 60,
        "retry_jitter": False,
        "idempotency_window": 86400,
    }


def test_a_queue_registers_itself_and_declares_what_it_set():
    plain, slow = Queue("mail"), Queue("slow", step=timedelta(minutes=1))

    assert {"mail": plain, "slow": slow} == QUEUES
    assert queue_declaration(plain) == {"queue": "mail", "ordering": "aging"}
    assert queue_declaration(slow) == {"queue": "slow", "ordering": "aging", "step": 60}


def test_a_queue_may_be_declared_twice_in_the_same_words_only():
    first = Queue("mail", ordering="fifo")
    Queue("mail", ordering="fifo")

    with pytest.raises(ConfigurationError, match="queue mail is declared twice"):
        Queue("mail", ordering="strict")

    assert {"mail": first} == QUEUES


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"name": "a b"}, f"queue: name {WORDS}"),
        ({"name": "mail", "ordering": "random"}, "queue mail: ordering must be 'aging', 'fifo' or 'strict'"),
        ({"name": "mail", "step": 10}, "queue mail: step must be a timedelta, not int"),
        (
            {"name": "mail", "step": timedelta(0)},
            "queue mail: step must be more than 0 and at most 10 years (87660 hours)",
        ),
        ({"name": "mail", "step": timedelta(days=4000)}, "queue mail: step must be more than 0 and at most 10 years"),
        ({"name": "mail", "ordering": "fifo", "step": timedelta(1)}, "queue mail: step belongs to ordering 'aging'"),
    ],
)
def test_a_bad_queue_is_refused_in_one_sentence(arguments, rule):
    with pytest.raises(ConfigurationError) as caught:
        Queue(**arguments)

    assert str(caught.value).startswith(rule)
    assert QUEUES == {}
