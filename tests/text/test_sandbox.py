"""Templates are programs that came with a download: what they must not reach, and how much they may cost."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidModel, InvalidRequest
from chairlift.text import ChatTemplate
from chairlift.text.meter import Bounds

CANARY = "canary.txt"
OPEN = f"open('{CANARY}', 'w')"
RUN = f"popen('touch {CANARY}')"

ESCAPES = [
    # Attributes of objects, spelled out.
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ [].__class__.__base__ }}",
    "{{ (1).__class__ }}",
    "{{ self.__init__.__globals__ }}",
    f"{{{{ self.__init__.__globals__.__builtins__.{OPEN} }}}}",
    f"{{{{ self._TemplateReference__context.cycler.__init__.__globals__.os.{RUN} }}}}",
    "{{ raise_exception.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ range.__class__ }}",
    "{{ strftime_now.__closure__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__class__ }}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "{% for m in messages %}{{ loop.__class__ }}{% endfor %}",
    "{% for m in messages %}{{ loop._iterable }}{% endfor %}",
    "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "{% set ns = namespace(_x=1) %}{{ ns._x }}",
    # The same by subscript, by filter, by name put together.
    "{{ ''['__class__'] + 1 }}",
    "{{ messages['__class__'].x }}",
    "{{ ''['__cla' ~ 'ss__'].x }}",
    "{% set a = '__cla' + 'ss__' %}{{ ''[a].x }}",
    "{{ '' | attr('__class__') }}",
    "{{ messages | map(attribute='__class__') | list | first | string | length + 'x' }}",
    "{{ messages | map('attr', '__class__') | list }}",
    "{{ messages | selectattr('__class__') | list | length + 'x' }}",
    "{{ messages | sort(attribute='__class__') }}",
    "{{ messages | groupby('__class__') }}",
    # Formatting, which looks up attributes by itself.
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ ('{0.__cla' ~ 'ss__}').format(1) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "{{ '{0.__class__}' | format(1) }}",
    "{{ ('{0.__class__}' | safe).format(1) }}",
    # What jinja brings along.
    "{{ lipsum.__globals__ }}",
    f"{{{{ lipsum.__globals__.os.{RUN} }}}}",
    "{{ lipsum(1000) }}",
    f"{{{{ cycler.__init__.__globals__.os.{RUN} }}}}",
    f"{{{{ joiner.__init__.__globals__.os.{RUN} }}}}",
    f"{{{{ get_flashed_messages.__globals__.__builtins__.{OPEN} }}}}",
    f"{{{{ request.application.__globals__.__builtins__.__import__('os').{RUN} }}}}",
    f"{{{{ config.__class__.__init__.__globals__['os'].{RUN} }}}}",
    f"{{{{ {OPEN} }}}}",
    "{{ __import__('os') }}",
    "{{ ''.join.__self__.__class__ }}",
    "{{ caller.__globals__ }}",
    "{{ environment.globals }}",
    "{{ context.parent }}",
    "{{ 'the meter'.bounds.x }}",
    # Other files, and the name under which a template was compiled.
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% from 'os' import popen %}",
    "{% extends '/etc/passwd' %}",
    "{% if messages %}{% include CANARY %}{% endif %}",
    "{{ self.blocks.x }}",
    # Changing what belongs to others.
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].setdefault('x', 1) }}",
    "{% set x = messages.sort() %}",
    # Generators, frames and code objects.
    "{% set g = messages | map('upper') %}{{ g.gi_frame }}",
    "{% set g = messages | select %}{{ g.gi_frame.f_globals }}",
    "{{ raise_exception.func_globals.os }}",
    "{{ messages[0].items().mapping }}",
    "{{ ''.encode('utf-7') }}",
    "{{ (1).to_bytes(10) }}",
    "{{ (1.5).hex() }}",
    "{% debug %}",
    "{% do messages.append(1) %}",
    "{% trans %}x{% endtrans %}",
    "{% python %}import os{% endpython %}",
]


def refused(source: str) -> bool:
    try:
        template = ChatTemplate(source)
    except InvalidModel:
        return True
    try:
        template.render([{"role": "user", "content": "Hello"}])
    except InvalidRequest:
        return True
    return False


@pytest.mark.parametrize("source", ESCAPES)
def test_b2_escapes_are_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trap(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a template reached the system")

    monkeypatch.chdir(tmp_path)
    for owner, name in ((os, "popen"), (os, "system"), (subprocess, "Popen"), (builtins, "open")):
        monkeypatch.setattr(owner, name, trap)
    assert refused(source), source
    monkeypatch.undo()
    assert not (tmp_path / CANARY).exists()


def test_there_are_at_least_forty_escapes() -> None:
    assert len(set(ESCAPES)) == len(ESCAPES) >= 40


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'].x }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{% include 'x' %}",
        "{{ x | attr('y') }}",
    ],
)
def test_a_hostile_template_is_found_when_it_is_loaded(source: str) -> None:
    with pytest.raises(InvalidModel, match="chat template"):
        ChatTemplate(source)


# ---------------------------------------------------------------- cost

FOREVER = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{{ i }}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for i in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 60 }}{% endfor %}",
    "{{ range(100000) | map('string') | map('upper') | map('lower') | list | join | length }}" * 50,
    "{% for i in range(1000) %}{{ range(100000) | list | sort | length }}{% endfor %}",
    "{% for i in range(1000) %}{{ range(100000) | select('odd') | list | length }}{% endfor %}",
    "{% for i in range(1000) %}{{ range(100000) | unique | list | length }}{% endfor %}",
    "{% for i in range(1000) %}{{ range(100000) | sum }}{% endfor %}",
    "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set t = s[1:] %}{% endfor %}",
    "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set t = s.upper().lower() %}{% endfor %}",
    "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set t = s | upper | lower %}{% endfor %}",
    "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set t = s.count('b') %}{% endfor %}",
    "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}",
    "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{% set t = s.split('a') %}{% endfor %}",
    "{% for c in 'a' * 1000000 %}{% for d in 'a' * 1000000 %}{% endfor %}{% endfor %}",
]

DOUBLED = "{% set x = namespace(s='a') %}{% for i in range(64) %}{% set x.s = DOUBLE %}{% endfor %}"
PAIRS = DOUBLED.replace("DOUBLE", "(x.s, x.s)")

LARGE = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ (0,) * 10**9 }}",
    "{{ 10 ** (10 ** 9) }}",
    "{{ 2 ** 100000 }}",
    "{% set ns = namespace(n=3) %}{% for i in range(64) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    DOUBLED.replace("DOUBLE", "x.s.replace('a', 'aa')"),
    DOUBLED.replace("DOUBLE", "x.s | replace('a', 'aa')"),
    DOUBLED.replace("DOUBLE", "[x.s, x.s] | join"),
    DOUBLED.replace("DOUBLE", "''.join([x.s, x.s])"),
    DOUBLED.replace("DOUBLE", "'{0}{0}'.format(x.s)"),
    DOUBLED.replace("DOUBLE", "'%s%s' % (x.s, x.s)"),
    DOUBLED.replace("DOUBLE", "[x.s, x.s] | string"),
    DOUBLED.replace("DOUBLE", "[x.s, x.s] | tojson"),
    DOUBLED.replace("DOUBLE", "[x.s, x.s]") + "{{ x.s }}",
    DOUBLED.replace("DOUBLE", "{'a': x.s, 'b': x.s}") + "{{ x.s }}",
    "{% set a = namespace(s=1) %}{% for i in range(64) %}{% set a.s = [a.s, a.s] %}{% endfor %}{{ a }}",
    "{% set x = namespace(s=1) %}{% set y = namespace(s=1) %}"
    "{% for i in range(64) %}{% set x.s = [x.s, x.s] %}{% set y.s = [y.s, y.s] %}{% endfor %}{{ x.s == y.s }}",
    "{% set x = namespace(s=1) %}{% set y = namespace(s=1) %}"
    "{% for i in range(64) %}{% set x.s = [x.s, x.s] %}{% set y.s = [y.s, y.s] %}{% endfor %}{{ [x.s, y.s] | sort }}",
    PAIRS + "{{ {x.s: 1} }}",
    PAIRS + "{{ {}[x.s] }}",
    PAIRS + "{{ {}.get(x.s) }}",
    PAIRS + "{{ x.s in messages[0] }}",
    PAIRS + "{{ [x.s] | unique | list }}",
    "{% set x = namespace(s=1) %}{% for i in range(90000) %}{% set x.s = (x.s,) %}{% endfor %}{{ x.s == 1 }}",
    "{% set x = namespace(s=1) %}{% for i in range(90000) %}{% set x.s = [x.s] %}{% endfor %}{{ x.s | tojson }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ [1] | slice(1000000000, 'x') | list }}",
    "{{ [1, 2] | batch(-1) | list }}",
    "{% set x = namespace(s=1) %}{% for i in range(64) %}{% set x.s = [x.s, x.s] %}{% endfor %}"
    "{{ [{'a': x.s}, {'a': x.s}] | groupby('a') }}",
    "{{ cycler().next() }}{{ cycler.__init__ }}",
    "{{ joiner('x').used }}{{ joiner.__class__ }}",
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ '\\t'.expandtabs(1000000000) }}",
    "{{ 'x\\ny' | indent(1000000000) }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ messages | tojson(indent='x' * 100000) }}",
    "{{ 1.5 | round(1000000000, 'ceil') }}",
    "{{ range(1000000000) | list }}",
    "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "{% macro f() %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endmacro %}{{ f() | length }}",
    "{% set s %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}{{ s | length }}",
    "{{ 'x' * 2000000 if messages }}",
    "{{ strftime_now('%1000000000d') }}",
]


@pytest.mark.parametrize("source", FOREVER)
def test_c3_endless_work_is_stopped(source: str) -> None:
    """By 100 ms of CPU time; five times as much here, for what one step may overshoot on a slow machine."""
    start = time.thread_time()
    assert refused(source)
    assert time.thread_time() - start < 0.5


@pytest.mark.parametrize("source", LARGE)
def test_c3_large_values_are_never_made(source: str) -> None:
    start = time.thread_time()
    assert refused(source)
    assert time.thread_time() - start < 0.5


def test_c3_hostile_templates_stay_small() -> None:
    """All of them one after another in a process that may grow by 64 MiB beyond its start."""
    code = (
        "import resource, sys\n"
        "from text.test_sandbox import FOREVER, LARGE, refused\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "kept = [source for source in FOREVER + LARGE if not refused(source)]\n"
        "print(kept, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    kept, _, growth = done.stdout.strip().rpartition(" ")
    assert kept == "[]"
    assert int(growth) < 64


def test_time_grows_with_the_conversation() -> None:
    assert Bounds().cpu_s(1) == pytest.approx(0.1, abs=0.001)
    assert Bounds().cpu_s(400) == pytest.approx(0.3)
    assert Bounds().cpu_s(10_000) == 0.5
    endless = "{% if messages | length > 1 %}" + FOREVER[1] + "{% endif %}"
    with pytest.raises(InvalidRequest, match=r"more than 0\.001 s"):
        ChatTemplate(endless, bounds=Bounds(0.0)).render([{"role": "user", "content": "x"}] * 2)


def test_the_bounds_are_the_operators(tmp_path: Path) -> None:
    template = ChatTemplate("{{ messages[0].content }}", bounds=Bounds(max_chars=10))
    assert template.render([{"role": "user", "content": "x" * 10}]) == "x" * 10
    with pytest.raises(InvalidRequest, match="larger than 10"):
        template.render([{"role": "user", "content": "x" * 11}])


@pytest.mark.parametrize(
    "source",
    [
        "{{",
        "{% for %}",
        "{% if x %}",
        "{{ x | nofilter }}",
        "{% generation %}",
        "(" * 10_000,
        "{{ " + "(" * 2000 + ")" * 2000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{% if x %}" * 200 + "{% endif %}" * 200,
        "{% for x in y %}" * 30 + "{% endfor %}" * 30,
        "x" * (1 << 19),
    ],
)
def test_templates_that_do_not_compile(source: str) -> None:
    try:
        ChatTemplate(source)
    except InvalidModel as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        assert source == "(" * 10_000, "plain text, whatever it looks like"


# ---------------------------------------------------------------- what templates do need


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content | trim | upper | lower | title | capitalize }}", "Hello world"),
        ("{{ 'a,b,c'.split(',') | join('-') }}", "a-b-c"),
        ("{{ [3, 1, 2] | sort | join }}{{ [1, 1, 2] | unique | list | length }}", "1232"),
        (
            "{{ {'b': 1, 'A': 2} | dictsort }}{{ {'b': 1, 'A': 2} | dictsort(true, 'value', true) }}",
            "[('A', 2), ('b', 1)][('A', 2), ('b', 1)]",
        ),
        ("{{ [1, 2, 3] | first }}{{ [1, 2, 3] | last }}{{ [] | first }}{{ [] | last }}", "13"),
        ("{{ 'abc' | reverse }}{{ [1, 2] | reverse | list }}", "cba[2, 1]"),
        (
            "{{ [1, 5, 3] | max }}{{ [4, 5, 3] | min }}{{ -3 | abs }}{{ 2.56 | round(1) }}{{ 2.5 | round | int }}",
            "5332.62",
        ),
        ("{{ x | default('d') }}{{ '' | default('e', true) }}{{ '12' | int + 1 }}{{ '1.5' | float }}", "de131.5"),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
            "['hello World ']",
        ),
        ("{{ messages | rejectattr('role', 'equalto', 'user') | list }}{{ [1, 2] | select('odd') | list }}", "[][1]"),
        ("{{ [1, 2] | map('string') | join('+') }}{{ ['a'] | map('upper') | first }}", "1+2A"),
        ("{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | list }}{{ [{'a': 'x'}] | join(attribute='a') }}", "[1, 2]x"),
        ("{{ {'a': [1, 'ü', none, true]} | tojson }}", '{"a": [1, "ü", null, true]}'),
        ("{{ {'b': 1, 'a': '<'} | tojson(indent=1, sort_keys=true) }}", '{\n "a": "<",\n "b": 1\n}'),
        ("{{ 'ü' | tojson(ensure_ascii=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}", '"\\u00fc"[1,2]'),
        (
            "{{ 'a\n\nb' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent('> ', blank=true) }}",
            "a\n\n    b|  a\n  b|a\n> \n> b",
        ),
        (
            "{{ 'aXbXc' | replace('X', '-') }}{{ 'aXbXc'.replace('X', '-', 1) }}{{ 'aXb' | replace('X', '-', 0) }}",
            "a-b-ca-bXcaXb",
        ),
        (
            "{{ '%s=%d' % ('a', 1) }}{{ '{}-{b}'.format(1, b=2) }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 3 * 4 }}",
            "a=11-2310" + "2412",
        ),
        ("{{ 'ab' * 2 }}{{ [1] + [2] }}{{ 'x' ~ 1 ~ none }}{{ '<' | e }}{{ '<' | safe }}", "abab[1, 2]x1None&lt;<"),
        ("{{ 'abc'[1:] }}{{ [1, 2, 3][::-1] }}{{ 'abc'[-1] }}{{ messages[0]['role'] }}", "bc[3, 2, 1]cuser"),
        ("{% set ns = namespace(n=0) %}{% for x in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}", "1"),
        (
            "{% for x in 'abc' %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{% endfor %}",
            "1TrueFalse2FalseFalsea3FalseTrueb",
        ),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
            "{% for k, v in {'a': 1} | items %}{{ k }}{% endfor %}",
            "a1a",
        ),
        (
            "{% macro f(x, y='z') %}[{{ x }}{{ y }}{{ caller() if caller }}]{% endmacro %}"
            "{{ f(1) }}{% call f(2) %}c{% endcall %}",
            "[1z][2zc]",
        ),
        (
            "{% set x %}a{{ 1 }}{% endset %}{{ x }}"
            "{% filter upper %}b{% endfilter %}{% with y = 2 %}{{ y }}{% endwith %}",
            "a1B2",
        ),
        (
            "{{ 'content' in messages[0] }}{{ 'x' in ['x'] }}{{ 3 in range(5) }}{{ 'a' in {'a': 1}.keys() }}",
            "TrueTrueTrueTrue",
        ),
        (
            "{{ 1 is number }}{{ 'a' is string }}{{ {} is mapping }}"
            "{{ x is undefined }}{{ none is none }}{{ 4 is divisibleby 2 }}",
            "True" * 6,
        ),
        ("{{ 'a' is in ['a'] }}{{ 1 is lt 2 }}{{ 'A' is upper }}{{ true is boolean }}{{ 1 is sameas 1 }}", "True" * 5),
        (
            "{{ dict(a=1, **{'b': 2}) }}{{ dict({'c': 3}) }}{{ {'a': {'b': 1}}.a.b }}{{ {'a': 1}.get('z', 5) }}",
            "{'a': 1, 'b': 2}{'c': 3}15",
        ),
        (
            "{{ 'Abc'.startswith('A') and 'abc'.endswith(('c', 'd')) }}{{ 'a b'.partition(' ') | list }}",
            "True['a', ' ', 'b']",
        ),
        (
            "{{ ','.join(['a', 'b']) }}{{ 'abc'.find('c') }}"
            "{{ 'a\nb'.splitlines() | length }}{{ 'xa'.removeprefix('x') }}",
            "a,b22a",
        ),
    ],
)
def test_what_templates_do(source: str, expected: str) -> None:
    assert ChatTemplate(source).render([{"role": "user", "content": "hello World "}]) == expected


def test_a_long_conversation_stays_within_the_bounds() -> None:
    messages = [{"role": ("user", "assistant")[turn % 2], "content": f"turn {turn} " * 20} for turn in range(1000)]
    source = "{% for m in messages %}{{ '<|turn|>' + m.role + '\n' + m.content | trim + '<|end|>\n' }}{% endfor %}"
    assert len(ChatTemplate(source).render(messages)) > 150_000
