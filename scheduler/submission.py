"""What is submitted: a job with its options, checked and made JSON. Only what the caller sets is sent."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from scheduler.error_text import UNSTORABLE
from scheduler.errors import InvalidJob
from scheduler.graph import JOB, ordered
from scheduler.payload import encode_json, encode_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scheduler.job import Job

_METADATA_LIMIT = 16_384  # bytes
_CALL_LIMIT = 200_000_000  # bytes; a jsonb holds 256 MB


class JobId:
    """The id of a submitted job.

    `created`: whether this submit made it; if not, it is the older one that a taken key stands for, and `running` tells
    whether that one was running.
    """

    __slots__ = ("created", "id", "running")

    def __init__(self, job_id: int, *, created: bool = False, running: bool = False) -> None:
        self.id = job_id
        self.created = created
        self.running = running

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"


def id_of(job: JobId | int) -> int:
    return job.id if isinstance(job, JobId) else job


class SubmitOptions(TypedDict, total=False):
    """What may be said of a job beside its payload; None is as good as left out.

    priority: -100 to 100, see Priority. run_at: not before this instant (aware); or delay: not before this long from
    now. depends_on: jobs that must end first, within a graph also names of its nodes; on_parent_failure: "cancel" or
    "run". idempotency_key: one job per kind and key; unique_key: one unfinished job per kind and key; on_taken: what a
    taken unique_key means: "keep" (the default: the job that has it stands for this one), "replace" (and gets this
    payload and time, unless it runs) or "raise". batch: True for the callback of a batch; member_of: the callback that
    waits for this job. metadata: a JSON object of at most 16 kB.
    """

    priority: int | None
    delay: timedelta | None
    run_at: datetime | None
    tenant: str | None
    depends_on: Iterable[JobId | int | str]
    on_parent_failure: str | None
    idempotency_key: str | None
    unique_key: str | None
    on_taken: str | None
    batch: bool | None
    member_of: JobId | int | None
    metadata: dict[str, Any] | None


class Submission:
    """One job of submit_many that has options of its own: they win over those of the call."""

    __slots__ = ("job", "options")

    def __init__(self, job: Job, **options: Unpack[SubmitOptions]) -> None:
        self.job = job
        self.options = options


class Json(str):
    """JSON as text; a driver may have to be told that it is not just text."""

    __slots__ = ()


def encode(job: Job, options: SubmitOptions) -> tuple[str, Json, Json]:
    """Return kind, payload and options as the verb `submit` takes them; raises InvalidJob naming field and rule."""
    payload = encode_payload(job).decode()
    return job.options.kind, Json(payload), Json(msgspec.json.encode(_checked(options)).decode())


def encode_graph(nodes: Mapping[str, Job | Submission], options: SubmitOptions) -> tuple[list[str], Json]:
    """Return the names of the nodes, parents first, and what the verb `submit_graph` takes; raises InvalidJob."""
    entries = {
        _text("node", name): job if isinstance(job, Submission) else Submission(job) for name, job in nodes.items()
    }
    named, rest = {}, {}
    for name, entry in entries.items():
        parents = entry.options.get("depends_on") or ()
        parents = [parents] if isinstance(parents, str) else list(parents)
        named[name] = [parent for parent in parents if isinstance(parent, str)]
        rest[name] = Submission(entry.job, **entry.options)
        if named[name]:
            rest[name].options["depends_on"] = [parent for parent in parents if not isinstance(parent, str)]
    names = ordered(named)
    places = {name: place for place, name in enumerate(names)}
    graph = [(name, {parent: places[parent] for parent in named[name]}) for name in names]
    return names, encode_many((rest[name] for name in names), options, graph)


def encode_many(
    jobs: Iterable[Job | Submission], options: SubmitOptions, graph: Sequence[tuple[str, dict[str, int]]] = ()
) -> Json:
    """Return what the verb `submit_graph` takes; raises InvalidJob, whose `index` tells which job.

    `graph`: the name of each job, and the places of its parents.
    """
    texts: list[bytes] = []
    for index, given in enumerate(jobs):
        job = given.job if isinstance(given, Submission) else given
        own = options | given.options if isinstance(given, Submission) else options
        try:
            payload = msgspec.Raw(encode_payload(job))
            entry = {"kind": job.options.kind, "payload": payload, **_checked(own)}
            if graph and graph[index][1]:
                entry["parents"] = graph[index][1]
            texts.append(msgspec.json.encode(entry))
        except InvalidJob as error:
            raise InvalidJob(error.field, error.rule, graph[index][0] if graph else index) from None
    size = sum(map(len, texts))
    if size > _CALL_LIMIT:
        way_out = "submit them in several calls, in one transaction with connection="
        raise InvalidJob("jobs", f"have {size:,} bytes of JSON, at most {_CALL_LIMIT:,} fit in one call: {way_out}")
    return Json(b"[%s]" % b",".join(texts), "utf-8")


def _checked(options: SubmitOptions) -> dict[str, Any]:
    checked = {}
    for name, value in options.items():
        if name not in _CHECKS:
            raise TypeError(f"{name!r} is no option of submit: options are {', '.join(_CHECKS)}, and connection")
        if value is not None:
            checked[name] = _CHECKS[name](name, value)
    if "member_of" in checked and (job_id := JOB.get(None)) is not None:
        checked["member"] = job_id  # a member may add others after its batch was closed
    return checked


def _delay(field: str, value: Any) -> str:  # noqa: ANN401 - it is what the caller wrote, as below
    if not isinstance(value, timedelta):
        raise InvalidJob(field, f"must be a timedelta, not {type(value).__name__}")
    if value < timedelta(0):
        raise InvalidJob(field, "must not be negative: leave it out to run the job now")
    return f"{value.total_seconds():f} seconds"


def _instant(field: str, value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, datetime):
        raise InvalidJob(field, f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidJob(field, "has no time zone: use an aware datetime, as in datetime.now(UTC)")
    return value.isoformat()


def _whole(field: str, value: Any) -> int:  # noqa: ANN401
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidJob(field, f"must be a whole number, not {type(value).__name__}")
    return value


def _text(field: str, value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise InvalidJob(field, f"must be text, not {type(value).__name__}")
    if UNSTORABLE.search(value):
        raise InvalidJob(field, "holds a NUL or a lone surrogate, which PostgreSQL cannot store: remove it")
    return value


def _parents(field: str, value: Any) -> list[int]:  # noqa: ANN401
    if isinstance(value, JobId | int | str):
        raise InvalidJob(field, "must be a list of handles or ids, as in [parent]")
    return [_job(field, parent) for parent in value]


def _job(field: str, value: Any) -> int:  # noqa: ANN401
    return _whole(field, id_of(value))


def _flag(field: str, value: Any) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        raise InvalidJob(field, f"must be True or False, not {type(value).__name__}")
    return value


def _metadata(field: str, value: Any) -> msgspec.Raw:  # noqa: ANN401
    return msgspec.Raw(encode_json(field, value, _METADATA_LIMIT))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "priority": _whole, "delay": _delay, "run_at": _instant, "tenant": _text, "depends_on": _parents,
    "on_parent_failure": _text, "idempotency_key": _text, "unique_key": _text, "metadata": _metadata,
    "on_taken": _text, "batch": _flag, "member_of": _job,
}  # fmt: skip
