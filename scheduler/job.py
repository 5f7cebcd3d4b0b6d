"""Job classes: a payload with types, and the method that runs it.

    class SendEmail(AsyncJob, queue="mail", timeout=timedelta(seconds=30)):
        to: str

        async def run(self, ctx: Context) -> None: ...

A class is checked when it is created, not when its first job fails. One without `run` is abstract: it may carry
options for others, and it enters no registry.
"""

import difflib
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, dataclass_transform

import msgspec

from scheduler.errors import ConfigurationError
from scheduler.options import ClassKeywords, Executor, JobKeywords, Options, Queue, check_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import StructMeta

    from scheduler.context import Context
else:
    StructMeta = type(msgspec.Struct)  # older releases do not export it

KINDS: dict[str, "type[Job]"] = {}

_OURS = tuple(JobKeywords.__annotations__)
_KNOWN = tuple(ClassKeywords.__annotations__)
_INHERITED = tuple(option for option in _OURS if option != "kind")
_FIXED = {"frozen": True, "array_like": False}  # a job is an immutable JSON object
_RESERVED = ("run", "options")


class JobMeta(StructMeta):
    """Takes our class keywords, hands msgspec's on, checks the class and registers it."""

    options: Options

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **keywords: Unpack[ClassKeywords]
    ) -> "JobMeta":
        passed_on: dict[str, Any] = dict(keywords)
        parents = [base for base in bases if isinstance(base, JobMeta)]
        if not parents:  # Job itself
            return super().__new__(mcls, name, bases, namespace, **passed_on)
        _check_keywords(name, passed_on)
        given = {option: passed_on.pop(option) for option in _OURS if option in passed_on}
        cls = super().__new__(mcls, name, bases, namespace, **passed_on)
        _check_members(cls, namespace)
        cls.options = _options(cls, parents, given)
        check_options(name, cls.options)
        if hasattr(cls, "run"):
            _check_run(cls, cls.options.executor)
            _register(cls)  # type: ignore[arg-type] # every instance of JobMeta but Job derives from Job
        return cls


def _check_keywords(name: str, keywords: dict[str, Any]) -> None:
    for keyword, value in keywords.items():
        if keyword not in _KNOWN:
            near = difflib.get_close_matches(keyword, _KNOWN, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"options are {', '.join(_OURS)}"
            raise ConfigurationError(f"unknown option {keyword!r} of {name}: {hint}")
        if value is not _FIXED.get(keyword, value):
            raise ConfigurationError(f"{name}: {keyword} is always {_FIXED[keyword]}, a job is an immutable object")


def _check_members(cls: JobMeta, namespace: dict[str, Any]) -> None:
    for reserved in _RESERVED:
        if reserved in cls.__struct_fields__:
            raise ConfigurationError(f"{cls.__name__}: {reserved!r} is part of every job class: rename the field")
    if "options" in namespace:
        raise ConfigurationError(f"{cls.__name__}: 'options' is set by the class keywords, not in the body")


def _options(cls: JobMeta, parents: list[JobMeta], given: dict[str, Any]) -> Options:
    """Merge what the class set over what its parents set; the kind is each class's own."""
    executors = {known for known in cls.__mro__ if "__executor__" in vars(known)}
    if len(executors) != 1:
        raise ConfigurationError(f"{cls.__name__}: derive from one of AsyncJob, BlockingJob or CpuBoundJob")
    merged: dict[str, Any] = {}
    for parent in reversed([parent for parent in parents if hasattr(parent, "options")]):
        merged |= {option: value for option in _INHERITED if (value := getattr(parent.options, option)) is not None}
    merged |= {option: value for option, value in given.items() if value is not None}
    own = {"kind": cls.__name__, "executor": vars(executors.pop())["__executor__"]}
    return Options(**(own | merged))


def _check_run(cls: JobMeta, executor: Executor) -> None:
    run: Callable[..., Any] = cls.run  # type: ignore[attr-defined] # seen by hasattr
    is_async = inspect.iscoroutinefunction(run)
    if executor == "async" and not is_async:
        raise ConfigurationError(
            f"{cls.__name__}: run of an AsyncJob must be `async def`;"
            " plain code belongs in a BlockingJob (a thread) or a CpuBoundJob (a process)"
        )
    if executor != "async" and (is_async or inspect.isasyncgenfunction(run)):
        base = "BlockingJob" if executor == "thread" else "CpuBoundJob"
        raise ConfigurationError(
            f"{cls.__name__}: run of a {base} must be a plain `def`; `async def` belongs in an AsyncJob"
        )
    try:
        inspect.signature(run).bind("self", "ctx")
    except (TypeError, ValueError):
        raise ConfigurationError(f"{cls.__name__}: run must take exactly (self, ctx)") from None


def _register(cls: "type[Job]") -> None:
    kind = cls.options.kind
    older = KINDS.get(kind)
    if older is not None and _path(older) != _path(cls):  # the same path: its module was imported again
        raise ConfigurationError(
            f"kind {kind!r} is taken by {_path(older)}, so {_path(cls)} cannot have it: give one of them another kind="
        )
    KINDS[kind] = cls


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, metaclass=JobMeta):
    """What the three kinds of job share. Derive from one of them, not from this."""

    options: ClassVar[Options]

    if TYPE_CHECKING:

        def __init_subclass__(cls, **keywords: Unpack[ClassKeywords]) -> None: ...


class AsyncJob(Job):
    """A job whose `async def run(self, ctx)` shares the worker's event loop: it waits, it does not compute."""

    __executor__: ClassVar[Executor] = "async"

    if TYPE_CHECKING:

        async def run(self, ctx: "Context") -> Any: ...  # noqa: ANN401 - any value JSON can hold


class BlockingJob(Job):
    """A job whose `run(self, ctx)` has a thread of its own: calls that block, libraries without async."""

    __executor__: ClassVar[Executor] = "thread"

    if TYPE_CHECKING:

        def run(self, ctx: "Context") -> Any: ...  # noqa: ANN401 - any value JSON can hold


class CpuBoundJob(Job):
    """A job whose `run(self, ctx)` has a process of its own, and can be killed: long computations."""

    __executor__: ClassVar[Executor] = "process"

    if TYPE_CHECKING:

        def run(self, ctx: "Context") -> Any: ...  # noqa: ANN401 - any value JSON can hold


def kind_declaration(cls: type[Job]) -> dict[str, Any]:
    """Return what the class set, as plain JSON values for the verb `declare`; durations in seconds."""
    said = msgspec.structs.asdict(cls.options)
    if retry := said.pop("retry"):
        for name, value in msgspec.structs.asdict(retry).items():
            said[name if name.startswith("max_") else f"retry_{name}"] = value
    return _as_json(said)


def queue_declaration(queue: Queue) -> dict[str, Any]:
    """Return what the queue set, as plain JSON values for the verb `declare`; durations in seconds."""
    said = msgspec.structs.asdict(queue)
    return _as_json({"queue": said.pop("name"), **said})


def _as_json(said: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in said.items()
        if value is not None
    }
