"""Report a pydantic validation error in one line."""

from __future__ import annotations

from pydantic import ValidationError


def first_error(error: ValidationError) -> str:
    """Return the first error with its location, as `[2].workers: Input should be a valid integer, not 'two'`."""
    found = error.errors(include_url=False, include_context=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"]).removeprefix(".")
    value = "" if found["type"] in ("missing", "json_invalid") else f", not {_short(found['input'])}"
    return f"{where}{': ' if where else ''}{found['msg']}{value}"


def _short(value: object, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
