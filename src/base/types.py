"""NamedTuple and Generic without typing; types that travel between rooms.

Importing typing takes a tenth of the time of importing this program. So only type checkers import it:
they take TYPE_CHECKING as true. Names defined under it are used only in annotations, which are texts
at run time.
"""
from __future__ import annotations

import collections
import operator

from .head import TYPE_CHECKING

if TYPE_CHECKING:
    import typing_extensions
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Generic as Generic, NamedTuple as NamedTuple, Protocol, TypedDict

if TYPE_CHECKING:
    P = typing_extensions.ParamSpec("P", default=...)           # the parameters of a function
    R = typing_extensions.TypeVar("R", default=Any)             # the type that it returns
    JsonObject = dict[str, Any]         # a JSON object, of ours or from outside
    Schema = dict[str, Any]             # JSON Schema: see base/values.py
    AnyTuple = tuple[Any, ...]
    Query = tuple[str, Sequence[Any]]   # a statement and its values

    class FieldError(TypedDict, total=False):
        """One fault of a request: the place of its task there, or its row in a file."""

        index: int
        row: int
        field: str
        message: str

    class Row(Protocol):
        """A row of the database: its columns by name and by place."""

        def __getitem__(self, __column: Any) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...
        def keys(self) -> Iterable[str]: ...

    TaskRow = Row                       # a row of `task`, with the owner's name if people see it
    WorkerRow = Row                     # a row of `worker`
    ScheduleRow = Row                   # a row of `schedule`
else:
    AnyTuple = tuple
    P = R = None
    # The fastest way to read a field: a C function of the standard library, or a property.
    _getter = getattr(collections, "_tuplegetter", lambda place, _: property(operator.itemgetter(place)))

    class Generic:
        """A base class for typing.Generic's syntax. Type checkers read the brackets; nothing else does."""

        def __class_getitem__(cls, _: Any) -> type:
            return cls

    class _NamedTupleType(type):
        """The metaclass of NamedTuple."""

        def __new__(kind, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            new_class = super().__new__(kind, name, bases, {**body, "__slots__": ()})
            fields = tuple(getattr(new_class, "__annotations__", ()))
            if fields:
                new_class._fields = new_class.__match_args__ = fields
                new_class._defaults = {field: body[field] for field in fields if field in body}
            for place, field in enumerate(fields):
                setattr(new_class, field, _getter(place, ""))
            return new_class

    class NamedTuple(tuple, metaclass=_NamedTupleType):
        """A tuple with named fields, as typing.NamedTuple."""

        def __new__(cls, *values: Any, **named: Any) -> NamedTuple:
            if named or len(values) != len(cls._fields):
                rest = {**cls._defaults, **named}
                values += tuple(rest.pop(field) for field in cls._fields[len(values):] if field in rest)
                if len(values) != len(cls._fields) or not cls._defaults.keys() >= rest.keys():
                    raise TypeError(cls.__name__, cls._fields, values, named)
            return tuple.__new__(cls, values)

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            parts = ("%s=%r" % pair for pair in zip(self._fields, self))
            return "%s(%s)" % (type(self).__name__, ", ".join(parts))

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self))

        def _replace(self, **changes: Any) -> NamedTuple:
            return type(self)(**{**self._asdict(), **changes})
