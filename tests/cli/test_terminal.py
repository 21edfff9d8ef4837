"""`generate` and `chat` on a fake device: what is printed, what is kept, and what Ctrl-C does."""

from __future__ import annotations

import builtins
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chairlift import LLM, SamplingParams
from chairlift.cli.chat import Conversation
from chairlift.cli.main import main
from chairlift.cli.printing import DIM, PLAIN
from chairlift.core.types import CacheShape, Request
from chairlift.text import GivenTemplate, load_text
from chairlift.worker import build
from chairlift.worker.answers import CompletionOutput, RequestOutput
from chairlift.worker.options import EngineOptions
from fake_built import MODEL, TEXT, built
from fakes import FakeExecutor, expected


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    """The device behind the commands of this test."""
    executor = FakeExecutor(CacheShape(128, 4))

    def fake(options: EngineOptions, chat_template: GivenTemplate | None) -> build.Built:
        made = built(executor)
        return made if chat_template is None else replace(made, text=load_text(MODEL, chat_template))

    monkeypatch.setattr(build, "build", fake)
    return executor


def answer(tokens: list[int], num_tokens: int) -> str:
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    request = Request(0, tokens, params)
    ended = [token for token in expected(request, num_tokens) if token not in TEXT.eos_token_ids]
    return TEXT.tokenizer.decode(ended)


def test_a_prompt_is_continued(executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Snow falls", "--max-tokens", "6", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == answer(TEXT.tokenizer.encode("Snow falls"), 6) + "\n"


def test_a_prompt_from_standard_input(
    executor: FakeExecutor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Snow\nfalls"))
    assert main(["generate", "--max-tokens", "6", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == answer(TEXT.tokenizer.encode("Snow\nfalls"), 6) + "\n"


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_text(
    errors: str, executor: FakeExecutor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors))
    assert main(["generate"]) == 2
    assert capsys.readouterr().err == "chairlift: standard input is not UTF-8\n"


def test_a_model_without_a_chat_template_is_not_talked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = replace(built(FakeExecutor(CacheShape(128, 4))), text=replace(TEXT, chat_template=None))
    monkeypatch.setattr(build, "build", lambda options, chat_template: base)
    assert main(["chat"]) == 2
    error = capsys.readouterr().err
    assert "has no chat template: chairlift generate" in error and "ready" not in error
    base = replace(base, text=replace(base.text, template_problem="a.jinja: a chat template does not compile: x"))
    assert main(["chat"]) == 2
    assert "a.jinja: a chat template does not compile: x: chairlift generate" in capsys.readouterr().err


def test_a_message_is_answered(executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hello", "--chat", "--max-tokens", "6", "--temperature", "0"]) == 0
    prompt = TEXT.encode_chat([{"role": "user", "content": "Hello"}])
    assert capsys.readouterr().out == answer(prompt, 6) + "\n"


@pytest.mark.parametrize("command", [["generate", "Hi", "--chat"], ["chat"]])
def test_a_template_in_the_place_of_the_own_one(
    command: list[str],
    executor: FakeExecutor,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "plain.jinja").write_text("Asked: {{ messages[0].content }}")
    given = ["--chat-template", str(tmp_path / "plain.jinja"), "--max-tokens", "6", "--temperature", "0"]
    lines = iter(["Hi", "/quit"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(lines))
    assert main([*command, *given]) == 0
    assert capsys.readouterr().out == answer(TEXT.tokenizer.encode("Asked: Hi"), 6) + "\n"
    with pytest.raises(SystemExit):
        main([*command, "--chat-template", str(tmp_path / "none")])
    assert "neither a template nor a file that can be read" in capsys.readouterr().err


def test_a_prompt_that_never_fits(executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "snow " * 500]) == 2
    assert "context" in capsys.readouterr().err


def test_a_failed_answer_is_status_1(executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.fail_row = lambda request: "the row is not finite"
    assert main(["generate", "Snow"]) == 1
    assert "not finite" in capsys.readouterr().err


class TestChat:
    @pytest.fixture
    def llm(self, executor: FakeExecutor) -> Iterator[LLM]:
        with LLM.from_built(built(executor, max_model_len=400)) as llm:
            yield llm

    def converse(self, llm: LLM, monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> Conversation:
        """Type these lines, with what each is asked for coming from the fake device."""
        script = iter(lines)

        def typed(prompt: str = "") -> str:
            line = next(script, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", typed)
        conversation = Conversation(llm, SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True), "Be brief.")
        conversation.run()
        return conversation

    def test_turns_add_up(self, llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        conversation = self.converse(llm, monkeypatch, "Hello", "", "  ", KeyboardInterrupt, "Again")
        roles = [turn["role"] for turn in conversation.turns]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        texts = [turn["content"] for turn in conversation.turns]
        assert texts[2] == answer(TEXT.encode_chat(conversation.turns[:2]), 5)
        assert texts[4] == answer(TEXT.encode_chat(conversation.turns[:4]), 5)
        assert capsys.readouterr().out == f"{texts[2]}\n{texts[4]}\n"

    def test_reset_and_quit(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        conversation = self.converse(llm, monkeypatch, "Hello", "/reset", "/help", "/quit", "never read")
        assert conversation.turns == [{"role": "system", "content": "Be brief."}]

    def test_a_conversation_that_grew_too_long_goes_on_from_where_it_was(
        self, llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        conversation = self.converse(llm, monkeypatch, "snow " * 1000, "Hello")
        assert [turn["content"] for turn in conversation.turns][:2] == ["Be brief.", "Hello"]
        assert "/reset" in capsys.readouterr().err

    def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(
        self, llm: LLM, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executor.step_s = 0.002
        count = 0
        stream = llm.stream_chat

        def interrupted(*args: object) -> Iterator[object]:
            nonlocal count
            for output in stream(*args):  # type: ignore[arg-type]
                yield output
                count += 1
                if count == 2:
                    raise KeyboardInterrupt

        monkeypatch.setattr(llm, "stream_chat", interrupted)
        conversation = self.converse(llm, monkeypatch, "Hello")
        assert [turn["role"] for turn in conversation.turns] == ["system", "user", "assistant"]
        said = conversation.turns[-1]["content"]
        assert said != ""
        assert answer(TEXT.encode_chat(conversation.turns[:2]), 5).startswith(said)

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_what_is_thought_is_shown_beside_the_answer_and_not_told_again(
        self, llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
    ) -> None:
        pieces = [("They ", ""), ("greet", ""), ("", ""), ("", "Hel"), ("", "lo")]

        def stream_chat(*args: object) -> Iterator[RequestOutput]:
            for thought, said in pieces:
                yield RequestOutput(None, [], [CompletionOutput(0, said, [], reasoning=thought)])

        monkeypatch.setattr(llm, "stream_chat", stream_chat)
        monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
        conversation = self.converse(llm, monkeypatch, "Hi")
        shown = capsys.readouterr()
        assert shown.out == "Hello\n"
        assert shown.err == (f"{DIM}They greet{PLAIN}\n\n" if is_terminal else "They greet\n\n")
        assert conversation.turns[-1] == {"role": "assistant", "content": "Hello"}
        pieces[2:] = []
        self.converse(llm, monkeypatch, "Hi")
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("\n", f"{DIM}They greet{PLAIN}" if is_terminal else "They greet")
