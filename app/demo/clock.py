"""Time zones by name or by city, and times in them."""

import difflib
import re
from datetime import date, datetime, time
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
_SHORT_TIME = re.compile(r"(\d{1,2})\s*(am|pm)", re.IGNORECASE)


def find_zone(name: str) -> ZoneInfo:
    """Return the zone of an IANA name or a city. Raise `ValueError` with similar names if there is none."""
    names = _list_names()
    wanted = _normalize(name)
    if wanted in names:
        return ZoneInfo(names[wanted])
    similar = dict.fromkeys(names[each] for each in difflib.get_close_matches(wanted, names, n=5, cutoff=0.6))
    advice = f"did you mean {', '.join(similar)}?" if similar else "use a name such as Europe/Vienna, or UTC"
    raise ValueError(f"there is no time zone {name!r}; {advice}")


@cache
def _list_names() -> dict[str, str]:
    """Return the zones by normalized name, and by the city at its end where only one zone has it."""
    zones = sorted(available_timezones())
    by_city: dict[str, list[str]] = {}
    for zone in zones:
        # America/Indiana/Indianapolis is also an old America/Indianapolis: the shorter name comes first.
        if "/" in zone and not zone.startswith(("posix/", "right/", "Etc/", "US/")):
            by_city.setdefault(_normalize(zone.rpartition("/")[2]), []).append(zone)
    cities = {city: min(found, key=len) for city, found in by_city.items()}
    return cities | {_normalize(zone): zone for zone in zones}


def _normalize(name: str) -> str:
    return name.strip().replace(" ", "_").casefold()


def parse_time(text: str) -> time:
    """Return the time of a day, written as 14:30, 2:30 pm or 9 am."""
    if match := _TIME.fullmatch(text.strip()):
        hour, minute, second, half = int(match[1]), int(match[2]), int(match[3] or 0), match[4]
    elif match := _SHORT_TIME.fullmatch(text.strip()):
        hour, minute, second, half = int(match[1]), 0, 0, match[2]
    else:
        raise ValueError(f"{text!r} is not a time, such as 14:30 or 2:30 pm")
    if half is not None:
        if not 1 <= hour <= 12:
            raise ValueError(f"{text!r} is not a time: with am or pm, hours go from 1 to 12")
        hour = hour % 12 + (12 if half.lower() == "pm" else 0)
    try:
        return time(hour, minute, second)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: hours go from 0 to 23, minutes and seconds from 0 to 59") from None


def parse_date(text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a date, such as 2026-11-18") from None


def make_local(day: date, at: time, zone: ZoneInfo) -> datetime:
    """Return the moment. Of a time that comes twice, when the clocks are set back, return the first."""
    local = datetime.combine(day, at, tzinfo=zone)
    try:
        exists = local.astimezone(ZoneInfo("UTC")).astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
    except OverflowError:
        raise ValueError(f"{day} is too far away") from None
    if not exists:
        raise ValueError(f"{at} does not exist on {day} in {zone.key}: the clocks are set forward then")
    return local


def convert(local: datetime, zone: ZoneInfo) -> datetime:
    try:
        return local.astimezone(zone)
    except OverflowError:
        raise ValueError(f"{local.date()} is too far away") from None
