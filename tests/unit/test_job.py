"""Job classes are checked when they are created, and say what was set."""

import json
from datetime import timedelta

import msgspec
import pytest

from scheduler.errors import ConfigurationError
from scheduler.job import (
    KINDS,
    AsyncJob,
    BlockingJob,
    CpuBoundJob,
    Job,
    JobMeta,
    kind_declaration,
)
from scheduler.options import Priority, Retry


@pytest.fixture(autouse=True)
def no_kinds():
    kinds = dict(KINDS)
    KINDS.clear()
    yield
    KINDS.clear()
    KINDS.update(kinds)


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


def test_a_class_with_a_bad_option_is_refused_and_not_registered():
    with pytest.raises(ConfigurationError, match="SendEmail: timeout must be more than 0"):
        make(timeout=timedelta(0))

    assert KINDS == {}


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
    assert kind_declaration(make()) == {"kind": "SendEmail", "executor": "async"}


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

    assert json.loads(json.dumps(kind_declaration(job))) == {
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
