"""Values of users' code as JSON: numbers, texts, lists and dictionaries.

WRITTEN has rows for types that json cannot write. The modules of these types are not imported here: there
are no values of a module that was never imported.
"""
from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from enum import Enum

from .head import TYPE_CHECKING
from .limits import RESULT_MAX_DEPTH
from .time_and_text import dump_json, jsonable

if TYPE_CHECKING:
    from typing import Any

PLAIN_KEYS = str, int, float, type(None)     # types of a dictionary's keys that json can write

# Module and name of a class, and the function that converts its values. The first matching row counts.
WRITTEN: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("decimal", "Decimal", str), ("uuid", "UUID", str), ("fractions", "Fraction", str),
    ("builtins", "complex", str), ("pathlib", "PurePath", str), ("ipaddress", "_IPAddressBase", str),
    ("datetime", "tzinfo", str), ("builtins", "range", list),
    ("collections", "deque", list), ("collections.abc", "Mapping", dict), ("collections.abc", "Set", list),
    ("builtins", "memoryview", bytes), ("builtins", "bytearray", bytes))


def count_bytes(value: bytes) -> str:
    """Return the number of bytes as text: JSON cannot write bytes."""
    return "<%d bytes>" % len(value)


def plain_value(value: Any, levels: int = RESULT_MAX_DEPTH,
                write_bytes: Callable[[bytes], str] = count_bytes) -> Any:
    """Return a value, converted so that JSON can write it.

    TypeError if its type is not known here, ValueError if it is nested too deeply.
    """
    write_part = functools.partial(plain_value, levels=levels - 1, write_bytes=write_bytes)
    if isinstance(value, Enum):
        value = jsonable(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes):
        return write_bytes(value)
    if levels < 0:
        raise ValueError("the result is nested deeper than %d levels" % RESULT_MAX_DEPTH)
    if isinstance(value, dict):
        return {key if isinstance(key, PLAIN_KEYS) and not isinstance(key, Enum) else
                str(write_part(key)): write_part(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(map(write_part, value))
    for module, name, write in WRITTEN:
        if is_of(module, name, value):
            return plain_value(write(value), levels, write_bytes)
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: write_part(getattr(value, name)) for name in value.__dataclass_fields__}
    for name in "tolist", "item":       # arrays and numbers of numpy
        if hasattr(type(value), name) and hasattr(value, "dtype"):
            return plain_value(getattr(value, name)(), levels - 1)
    for name in "model_dump", "to_dict":    # methods of pydantic and pandas
        if hasattr(type(value), name):
            return plain_value(getattr(value, name)(), levels, write_bytes)
    return jsonable(value)


def is_of(module: str, name: str, value: object) -> bool:
    """Return whether a value is an instance of this module's class; False if it was never imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def argument_value(value: Any) -> Any:
    """Return an argument as a JSON value, with bytes as Base64.

    TypeError or ValueError for a value that JSON cannot write.
    """
    try:
        return json.loads(dump_json(value))
    except TypeError:
        import base64
        return plain_value(value, write_bytes=lambda data: base64.b64encode(data).decode("ascii"))
