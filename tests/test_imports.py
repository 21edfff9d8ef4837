"""Who may import whom: the table of docs/architecture.md, read from the page and enforced on the syntax tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "chairlift"
FILES = sorted(SOURCE.rglob("*.py"))
EVERYWHERE = {"__version__"}
TOP = {"__init__", "__main__"}
"""Modules of no package: they are the front, and may import what is behind it."""


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def allowed() -> dict[str, set[str]]:
    """Package -> packages of ours it may import."""
    table: dict[str, set[str]] = {}
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("| package | may import |")[1].split("\n\n")[0]
    for line in section.splitlines():
        match = re.fullmatch(r"\| ([a-z, ]+) \| (.+) \|", line)
        if match is None:
            continue
        for package in match[1].split(", "):
            names = {re.split(r"[;(]", name)[0].strip() for name in match[2].split(",")}
            table[package] = {name for name in names if re.fullmatch(r"[a-z]+", name)}
    return table


def imports(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """Module name, line, and whether the import stands inside a function."""
    inside = {
        id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level, node.lineno, id(node) in inside
            else:
                module = node.module or ""
                names = [f"{module}.{a.name}" for a in node.names] if module == "chairlift" else [module]
                for name in names:
                    yield name, node.lineno, id(node) in inside


def test_the_table_names_every_package() -> None:
    packages = {package_of(path) for path in FILES} - TOP
    assert packages == set(allowed()), "docs/architecture.md and src/chairlift differ"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_table(path: Path) -> None:
    package = package_of(path)
    table = allowed()
    wrong = []
    for module, line, inside in imports(ast.parse(path.read_text())):
        top, _, rest = module.partition(".")
        if inside and package not in {"cli", *TOP}:
            wrong.append(f"line {line}: {module} is imported inside a function")
        if top == "":
            wrong.append(f"line {line}: relative import")
        elif top == "chairlift" and package not in {"cli", *TOP}:
            target = rest.partition(".")[0]
            if target not in {package, *table[package], *EVERYWHERE}:
                wrong.append(f"line {line}: {package} may not import {target}")
        elif top != "chairlift" and package == "core" and top not in sys.stdlib_module_names:
            wrong.append(f"line {line}: core imports {top}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["time", "random", "os", "logging", "asyncio", "threading", "uuid", "secrets"])
def test_core_has_no_clock_no_chance_and_no_threads(module: str) -> None:
    for path in (SOURCE / "core").rglob("*.py"):
        assert module not in {name.partition(".")[0] for name, _, _ in imports(ast.parse(path.read_text()))}, path


def test_importing_core_loads_nothing_else() -> None:
    code = "import sys, chairlift.core.engine; print([m for m in sys.modules if m in {'numpy', 'openvino', 'msgspec'}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_server_process_loads_no_numpy_and_no_openvino() -> None:
    code = "import sys, chairlift.server.run; print([m for m in sys.modules if m in {'numpy', 'openvino'}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
