"""Arguments of the command line, each checked before anything is connected."""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scheduler import embedded
from scheduler.errors import InvalidJob
from scheduler.options import Priority
from scheduler.payload import PAYLOAD_LIMIT, encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scheduler.states import Status

dsn_option = click.option(
    "--dsn", envvar="SCHEDULER_DSN", show_envvar=True, help="The database, as a URL; embedded: for a private one."
)

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def address(value: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+)):(\d{1,5})", value, re.ASCII)
    if match is None or int(match[3]) > 65535:
        raise click.BadParameter("must be host:port, as in 127.0.0.1:9420, or 0.0.0.0:9420 to be asked from elsewhere")
    return match[1] or match[2], int(match[3])


http_option = click.option(
    "--http", envvar="SCHEDULER_HTTP", show_envvar=True, type=address, metavar="HOST:PORT",
    help="Where a worker answers GET /health and /live.",
)  # fmt: skip


def job_id(value: str) -> int:
    if not (re.fullmatch(r"\d{1,19}", value, re.ASCII) and 0 < int(value) < 2**63):
        raise click.BadParameter("is not the id of a job, which is a whole number")
    return int(value)


def seconds(value: str) -> timedelta:
    if not re.fullmatch(r"\d{1,8}(\.\d{1,6})?", value, re.ASCII):
        raise click.BadParameter("must be a number of seconds, as in 30 or 0.5")
    return timedelta(seconds=float(value))


def priority(value: str) -> int:
    if value.upper() in Priority.__members__:
        return Priority[value.upper()]
    if re.fullmatch(r"[+-]?\d{1,3}", value, re.ASCII) and -100 <= int(value) <= 100:
        return int(value)
    raise click.BadParameter("must be low, medium, high, critical or a whole number from -100 to 100")


def duration(value: str) -> timedelta:
    if not (match := _DURATION.fullmatch(value)):
        raise click.BadParameter("must be a number with s, m, h or d, as in 30s, 5m, 2h or 1d")
    return timedelta(**{_UNITS[match[2]]: float(match[1])})


def age(value: str) -> float:
    return duration(value).total_seconds()


def instant(value: str) -> str:
    """Return an instant of ISO 8601, with its zone."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter("must be a date and time of ISO 8601, as in 2030-01-31T09:00:00+01:00") from None
    if moment.utcoffset() is None:
        raise click.BadParameter("has no time zone: add Z for UTC, or an offset like +01:00")
    return moment.isoformat()


def text(value: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in value):  # what Python makes of bytes it cannot decode
        raise click.BadParameter("is not text in the encoding of this terminal")
    return value


# What chooses jobs, beside their status; the ages are counted from the submission.
_FILTERS = (
    click.option("--kind", type=text, metavar="NAME", help="Of this kind."),
    click.option("--queue", type=text, metavar="NAME", help="In this queue."),
    click.option("--tenant", type=text, metavar="NAME", help="On behalf of this tenant."),
    click.option("--error", type=text, metavar="TEXT", help="With this text in the error."),
    click.option("--older-than", type=age, metavar="TIME", help="Submitted so long ago: 30s, 5m, 2h, 1d."),
    click.option("--newer-than", type=age, metavar="TIME", help="Submitted since then."),
)


def filters(statuses: Iterable[Status]) -> Callable[[Any], Any]:
    """Add the options that choose jobs, whose status is one of `statuses`."""
    choice = click.Choice([str(status) for status in statuses], case_sensitive=False)
    by_status = click.option(
        "--status", type=choice, multiple=True, metavar="STATUS", help="As in pending; repeatable."
    )

    def add(verb: Any) -> Any:  # noqa: ANN401 - a function, or the command that click made of one
        for option in reversed((by_status, *_FILTERS)):
            verb = option(verb)
        return verb

    return add


def given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, ())}


def payload(_: click.Context, __: click.Parameter, value: str) -> str:
    """Return a payload as it was written, so that no number is rounded; - reads stdin. Raises InvalidJob."""
    written = sys.stdin.buffer.read() if value == "-" else value.encode(errors="surrogateescape")
    try:
        return encode_json("payload", msgspec.Raw(written), PAYLOAD_LIMIT).decode()
    except UnicodeDecodeError:
        raise InvalidJob("payload", "is not valid UTF-8") from None


def embedded_database(dsn: str | None, folder: str | None) -> str:
    """Return the DSN of the embedded server: the one named, or else that of SCHEDULER_DSN, or else the default one."""
    if folder:
        return f"{embedded.PREFIX}{folder}"
    found = dsn or os.environ.get("SCHEDULER_DSN", "")
    return found if dsn or embedded.is_embedded(found) else embedded.PREFIX
