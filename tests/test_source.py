"""What must not stand anywhere in the source: see the tests' names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "src").rglob("*.py"))
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


def test_compared_keys_are_compared_in_constant_time() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "src" / "chairlift" / "server").rglob("*.py"))
    assert "compare_digest" in text
