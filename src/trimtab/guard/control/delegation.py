"""Methods of `Control` that `Guard` offers under the same name, with their types and docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.control.control import Control

__all__ = ["delegate"]

P = ParamSpec("P")
R = TypeVar("R")


class _Controlled(Protocol):
    """What has a `Control`."""

    control: Control


class _Delegated(Generic[P, R]):
    """A method of `Control`; on a guard it is bound to the guard's control."""

    def __init__(self, method: Callable[Concatenate[Control, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, guard: None, owner: type[object]) -> Callable[Concatenate[Control, P], R]: ...
    @overload
    def __get__(self, guard: _Controlled, owner: type[object]) -> Callable[P, R]: ...
    def __get__(
        self, guard: _Controlled | None, owner: type[object]
    ) -> Callable[Concatenate[Control, P], R] | Callable[P, R]:
        if guard is None:
            return self._method
        bound: Callable[P, R] = getattr(guard.control, self._method.__name__)
        return bound


def delegate(method: Callable[Concatenate[Control, P], R]) -> _Delegated[P, R]:
    """Return a class attribute that offers a method of `Control` on what has one.

    Seen from the class it is the method itself, so that help and signature are the same.
    """
    return _Delegated(method)
