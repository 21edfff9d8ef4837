"""Which route a path belongs to."""

from __future__ import annotations

import pytest

from chairlift.server.route import Route
from chairlift.server.routes import Routes

NAMES = (
    "/v1/files",
    "/v1/files/{id}",
    "/v1/files/{id}/content",
    "/v1/files/{id}/all/content",
    "/v1/files/known",
    "/ui",
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/files", "/v1/files"),
        ("/v1/files/a", "/v1/files/{id}"),
        ("/v1/files/a/b", "/v1/files/{id}"),
        ("/v1/files/", "/v1/files/{id}"),
        ("/v1/files/known", "/v1/files/known"),
        ("/v1/files/a/content", "/v1/files/{id}/content"),
        ("/v1/files/a/b/content", "/v1/files/{id}/content"),
        ("/v1/files/a/all/content", "/v1/files/{id}/all/content"),
        ("/v1/files/content", "/v1/files/{id}"),
        ("/v1/files//content", "/v1/files/{id}"),
        ("/v1/files/a/content/", "/v1/files/{id}"),
        ("/V1/files", None),
        ("/v1/file", None),
        ("/v1/%66iles", None),
        ("/ui/", None),
        ("", None),
    ],
)
def test_the_name_that_says_most_about_a_path_has_it(path: str, name: str | None) -> None:
    for names in (NAMES, NAMES[::-1]):
        routes = Routes()
        routes.add(map(Route, names))
        found = routes.find(path.encode())
        assert (None if found is None else found.name) == name


def test_routes_are_told_in_the_order_in_which_they_were_added() -> None:
    routes = Routes()
    routes.add(map(Route, NAMES[:3]))
    routes.add(map(Route, NAMES[3:]))
    assert tuple(route.name for route in routes) == NAMES
