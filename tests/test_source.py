"""What must not stand anywhere in the source: see the tests' names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "src").rglob("*.py"))
SOURCE = ROOT / "src" / "chairlift"
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "multiprocessing"}
EXECUTORS = {"eval", "exec", "compile", "__import__"}


def name_of(node: ast.expr) -> str:
    """Dotted name of a called expression, as far as it is one."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_nothing_can_run_code_that_came_as_data(path: Path) -> None:
    """No pickle in any guise, no eval, no shell."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & UNPICKLERS
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in UNPICKLERS
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            assert name not in EXECUTORS, f"line {node.lineno}: {name}"
            assert name not in {"os.system", "os.popen", "torch.load"}, f"line {node.lineno}: {name}"
            for keyword in node.keywords:
                assert keyword.arg not in {"shell", "allow_pickle"}, f"line {node.lineno}: {keyword.arg}="


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_checks_do_not_vanish_under_optimisation(path: Path) -> None:
    """`python -O` drops assert statements (CVE-2026-41523 was a security check written as one)."""
    assert not [n.lineno for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_names_say_what_a_class_is(path: Path) -> None:
    vague = ("Manager", "Handler", "Helper", "Util", "Utils", "Base", "Mixin", "Impl")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(vague), node.name


SERVING = (
    "core",
    "models",
    "text",
    "sampling",
    "executors",
    "grammars",
    "worker",
    "journal",
    "metrics",
    "server",
    "wire",
)
CLIENTS = {
    "requests",
    "httpx",
    "aiohttp",
    "urllib3",
    "ftplib",
    "smtplib",
    "telnetlib",
    "xmlrpc",
    "webbrowser",
    "socketserver",
}
CLIENT_MODULES = {"urllib.request", "http.client"}
CONNECTS = {
    "connect",
    "connect_ex",
    "create_connection",
    "open_connection",
    "sock_connect",
    "sendto",
    "getaddrinfo",
    "gethostbyname",
}
MAY_CONNECT = {
    "http_server.py": {"getaddrinfo"},  # the address to listen on, before it listens
    "unix_socket.py": {"connect"},  # whether somebody listens where it wants to listen itself
}
"""What serves opens no connection to anywhere, whoever asks (reliability I1); an operator may name an exception."""


def files_of(*names: str) -> list[Path]:
    """Those of the named packages and modules."""
    return [one for one in FILES if one.relative_to(SOURCE).parts[0].removesuffix(".py") in names]


@pytest.mark.parametrize("path", files_of(*SERVING), ids=lambda p: p.name)
def test_i1_nothing_that_serves_connects_to_anywhere(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            assert not {name.partition(".")[0] for name in names} & CLIENTS
            assert not names & CLIENT_MODULES
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert module.partition(".")[0] not in CLIENTS
            assert module not in CLIENT_MODULES
            assert not {f"{module}.{alias.name}" for alias in node.names} & CLIENT_MODULES
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            assert name not in CONNECTS - MAY_CONNECT.get(path.name, set()), f"line {node.lineno}: {name}"


def test_k4_keys_are_compared_in_constant_time_and_in_no_other_way() -> None:
    """Where a client's key meets those that are known, nothing but `compare_digest` looks at both."""
    tree = ast.parse((SOURCE / "server" / "access.py").read_text())
    (checked,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_checked"]
    calls = [name_of(node.func) for node in ast.walk(checked) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in calls
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            assert not names & {"given", "key", "digest", "digests"}, f"line {node.lineno}"
    loops = [node for node in ast.walk(checked) if isinstance(node, ast.For)]
    assert len(loops) == 1
    assert not [node for node in ast.walk(loops[0]) if isinstance(node, ast.Break | ast.Return | ast.Raise)]
