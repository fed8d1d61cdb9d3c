"""docs/api.md's reference: what `netfold.__all__` names, in the words of its docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import netfold

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
ITEM = re.compile(r"([\w, ]+): (.*)")


def reference() -> str:
    """Functions, classes, errors; each by the alphabet."""
    found = {name: getattr(netfold, name) for name in netfold.__all__}
    errors = {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Exception)}
    classes = {name: kind for name, kind in found.items() if isinstance(kind, type) and name not in errors}
    functions = {name: each for name, each in found.items() if not isinstance(each, type)}
    parts = ["## Functions\n"]
    parts += [
        f"### `{name}`\n\n{_signature(f'netfold.{name}', each)}\n{_text(each)}" for name, each in functions.items()
    ]
    parts += ["## Classes\n"]
    parts += [f"### `{name}`\n\n{_text(kind)}{''.join(_members(kind))}" for name, kind in classes.items()]
    parts += ["## Errors\n", "".join(_lines_of_errors(errors))]
    return "\n".join(parts).rstrip() + "\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """With one parameter in a line, where there are many."""
    signature = inspect.signature(function)
    given, star = [], False
    for each in signature.parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            given.append("*")
            star = True
        told = "" if each.annotation is each.empty else f": {each.annotation}"
        given.append(f"{each.name}{told}" + ("" if each.default is each.empty else f" = {each.default!r}"))
    result = str(signature.return_annotation)
    if inspect.isgeneratorfunction(inspect.unwrap(function)):  # behind contextlib.contextmanager
        result = result.replace("Iterator", "AbstractContextManager")
    line = f"{name}({', '.join(given)}) -> {result}"
    if len(line) > 120:
        line = f"{name}(\n{''.join(f'    {each},{chr(10)}' for each in given)}) -> {result}"
    return f"```python\n{line}\n```\n"


def _members(kind: type) -> Iterator[str]:
    """Its own public methods, and properties that say something."""
    for name, member in vars(kind).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        if not member.__doc__:
            continue
        if isinstance(member, property):
            yield f"\n#### `{kind.__name__}.{name}`\n\n{_text(member)}"
        else:
            yield f"\n#### `{kind.__name__}.{name}`\n\n{_signature(name, member)}\n{_text(member)}"


def _text(documented: object) -> str:
    """A docstring, its sections' items as lists; attributes with their types, where they are declared."""
    types = vars(documented).get("__annotations__", {}) if isinstance(documented, type) else {}
    lines: list[str] = []
    section = ""
    for line in inspect.cleandoc(documented.__doc__ or "").splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            section = line.rstrip(":")
            lines += [f"{section}:", ""]
        elif section and line.startswith("    "):
            item = ITEM.fullmatch(line[4:])
            if line[4] != " " and item is not None and section not in ("Returns", "Yields"):
                typed = dict.fromkeys(types[name] for name in item[1].split(", ") if name in types)
                kinds = f" ({', '.join(f'`{each}`' for each in typed)})" if typed else ""
                names = ", ".join(f"`{name}`" for name in item[1].split(", "))
                lines.append(f"- {names}{kinds}: {item[2]}")
            else:
                lines.append(f"  {line.strip()}" if line[4] == " " else line.strip())
        else:
            section = section if not line else ""
            lines.append(line)
    return "\n".join(lines) + "\n"


def _lines_of_errors(errors: dict[str, type]) -> Iterator[str]:
    for name, kind in errors.items():
        above = kind.__bases__[0].__name__
        first = inspect.cleandoc(kind.__doc__ or "").splitlines()[0]
        yield f"- `{name}`{f', a `{above}`' if above in errors else ''}: {first}\n"
