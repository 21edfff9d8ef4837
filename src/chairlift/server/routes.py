"""All routes of a server, and which of them a path belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chairlift.server.route import Route


class Routes:
    """Finds routes by the raw path, byte for byte: what was not decoded cannot be decoded differently by somebody else.

    `{...}` in a name stands for anything, slashes included, and at the end of a name for nothing too. A name without it
    goes before one with it, and of two with it the one that says more about how the path ends.
    """

    def __init__(self) -> None:
        self._all: list[Route] = []
        self._whole: dict[bytes, Route] = {}
        self._around: list[tuple[bytes, bytes, Route]] = []
        """How paths begin and end that have something in between, and their route."""

    def add(self, routes: Iterable[Route]) -> None:
        """Have these routes too."""
        for route in routes:
            self._all.append(route)
            begin, has_place, rest = route.name.partition("{")
            if has_place:
                self._around.append((begin.encode(), rest.partition("}")[2].encode(), route))
            else:
                self._whole[begin.encode()] = route
        self._around.sort(key=lambda one: len(one[1]), reverse=True)

    def find(self, path: bytes) -> Route | None:
        """The route of a path, if there is one."""
        route = self._whole.get(path)
        if route is not None:
            return route
        for begin, end, around in self._around:
            if path.startswith(begin) and path.endswith(end) and (not end or len(path) > len(begin) + len(end)):
                return around
        return None

    def __iter__(self) -> Iterator[Route]:
        return iter(self._all)
