"""The offline API, on a fake device that shows every mix-up, and on the real model."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from chairlift import LLM, AsyncLLM, EngineDead, InvalidOption, InvalidRequest, NeverFits, SamplingParams
from chairlift.core.types import CacheShape, Request, StepPlan
from chairlift.text import GivenTemplate
from chairlift.worker.answers import RequestOutput
from chairlift.worker.build import Built
from chairlift.worker.options import EngineOptions
from fake_built import TEXT, built
from fakes import VOCAB_SIZE, FakeExecutor, expected

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor(CacheShape(128, 4))


@pytest.fixture
def llm(executor: FakeExecutor) -> Iterator[LLM]:
    with LLM.from_built(built(executor)) as llm:
        yield llm
    assert executor.violations == []


def alone(tokens: list[int], params: SamplingParams = GREEDY, choice: int = 0) -> list[int]:
    """What a prompt gets from the fake device, whoever else is there."""
    return expected(Request(0, tokens, params), params.max_tokens or 0, choice)


def ids(first: int, length: int = 9) -> list[int]:
    return [(first * 17 + i) % VOCAB_SIZE for i in range(length)]


class TestGenerate:
    def test_answers_come_in_the_order_of_the_prompts(self, llm: LLM) -> None:
        prompts = [ids(i, 3 + i % 40) for i in range(50)]
        params = [SamplingParams(max_tokens=1 + i % 7, temperature=0.0, ignore_eos=True) for i in range(50)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == prompts
        for prompt, each, output in zip(prompts, params, outputs, strict=True):
            (only,) = output.outputs
            assert only.token_ids == alone(prompt, each)
            assert only.text == TEXT.tokenizer.decode(only.token_ids)
            assert (only.finish_reason, output.finished) == ("length", True)

    def test_every_form_of_a_prompt(self, llm: LLM) -> None:
        text = "The snow lies deep"
        tokens = TEXT.tokenizer.encode(text)
        forms: list[str | list[int] | list[str] | list[list[int]]] = [text, [text], tokens, [tokens]]
        for prompts in forms:
            (output,) = llm.generate(prompts, GREEDY, use_tqdm=False)
            assert output.prompt_token_ids == tokens
            assert output.prompt == (text if prompts in (text, [text]) else None)
            assert output.outputs[0].token_ids == alone(tokens)
        mixed: list[str | list[int]] = [text, tokens]
        assert [output.prompt_token_ids for output in llm.generate(mixed, GREEDY, use_tqdm=False)] == [tokens, tokens]
        assert llm.generate([], use_tqdm=False) == []

    def test_arrays_and_iterators_are_prompts_too(self, llm: LLM) -> None:
        texts: Any = (text for text in ["one", "two"])
        assert [output.prompt for output in llm.generate(texts, GREEDY, use_tqdm=False)] == ["one", "two"]
        forms: list[Any] = [np.array([5, 6, 7]), [np.array([5, 6, 7])], np.array([[5, 6, 7]]), range(5, 8), (5, 6, 7)]
        for prompts in forms:
            (output,) = llm.generate(prompts, GREEDY, use_tqdm=False)
            assert output.prompt_token_ids == [5, 6, 7]
            assert all(type(token) is int for token in output.prompt_token_ids)

    @pytest.mark.parametrize(
        "prompts",
        [None, 5, b"abc", {"prompt": "x"}, [None], [{"prompt": "x"}], [b"abc"], [1.5], [[1.5]], ["a", 5], [["a"]]],
    )
    def test_what_is_no_prompt_is_refused_and_the_engine_lives(self, llm: LLM, prompts: Any) -> None:
        with pytest.raises(InvalidRequest, match="token ids"):
            llm.generate(prompts, GREEDY, use_tqdm=False)
        assert llm.generate(ids(1), GREEDY, use_tqdm=False)[0].outputs[0].token_ids == alone(ids(1))

    def test_what_are_no_parameters_is_refused(self, llm: LLM) -> None:
        wrong: list[Any] = [{"max_tokens": 3}, ["x"], 5]
        for params in wrong:
            with pytest.raises(InvalidRequest, match="sampling_params"):
                llm.generate("a", params, use_tqdm=False)
            with pytest.raises(InvalidRequest, match="sampling_params"):
                next(llm.stream("a", params))
        counts: list[Any] = ["2", 2.0, True, None]
        for n in counts:
            with pytest.raises(InvalidRequest, match="n must be an integer"):
                llm.generate("a", GREEDY, n=n, use_tqdm=False)

    def test_the_lower_priority_joins_first(self) -> None:
        gate = threading.Semaphore(0)
        executor = FakeExecutor(CacheShape(128, 4), gate=gate)
        with LLM.from_built(built(executor)) as llm:
            outputs: list[RequestOutput] = []

            def call() -> None:
                prompts = [ids(i, 3) for i in range(12)]
                outputs.extend(llm.generate(prompts, GREEDY, priority=range(12, 0, -1), use_tqdm=False))

            first, then = threading.Thread(target=llm.generate, args=(ids(50),)), threading.Thread(target=call)
            first.start()
            executor.submitted.acquire()
            then.start()
            deadline = time.monotonic() + 20
            while len(llm._session.engine._callers) < 13 and time.monotonic() < deadline:
                time.sleep(0.001)
            gate.release(1000)
            for thread in (first, then):
                thread.join(20)
        began = [output.metrics[0].first_scheduled or 0.0 for output in outputs]
        assert began == sorted(began, reverse=True)
        assert began[0] > began[-1]

    @pytest.mark.parametrize(
        ("service", "message"),
        [
            ({"priority": [1]}, "2 prompts need one or 2 priorities"),
            ({"priority": 1.5}, "priority must be an integer"),
            ({"priority": 2**31}, "priority must be an integer"),
            ({"priority": [0, "high"]}, "priority must be an integer"),
            ({"tenant": 7}, "tenant must be a text"),
            ({"tenant": "a\nb"}, "tenant must be a text"),
            ({"ttft_deadline_ms": 0}, "ttft_deadline_ms must be a number of milliseconds above 0"),
            ({"e2e_deadline_ms": float("nan")}, "e2e_deadline_ms must be"),
            ({"e2e_deadline_ms": 10**400}, "e2e_deadline_ms must be"),
            ({"e2e_deadline_ms": "soon"}, "e2e_deadline_ms must be"),
        ],
    )
    def test_when_and_for_whom_must_make_sense(
        self, llm: LLM, executor: FakeExecutor, service: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            llm.generate([ids(1), ids(2)], GREEDY, use_tqdm=False, **service)
        assert executor.num_steps == 0

    def test_when_and_for_whom_reach_the_engine(self, llm: LLM) -> None:
        before = time.monotonic()
        request = llm._session.request(ids(1), GREEDY, 1, -3, tenant="a", ttft_deadline_ms=500, e2e_deadline_ms=2000.0)
        after = time.monotonic()
        assert (request.priority, request.tenant) == (-3, "a")
        assert request.ttft_deadline is not None and before + 0.5 <= request.ttft_deadline <= after + 0.5
        assert request.e2e_deadline is not None and before + 2 <= request.e2e_deadline <= after + 2
        with pytest.raises(TypeError, match="deadline_ms"):
            llm._session.request(ids(1), GREEDY, 1, 0, deadline_ms=5)  # type: ignore[call-arg]

    def test_without_parameters_sixteen_tokens(self, llm: LLM) -> None:
        (output,) = llm.generate(ids(1), use_tqdm=False)
        assert len(output.outputs[0].token_ids) <= 16

    def test_several_choices(self, llm: LLM) -> None:
        params = SamplingParams(max_tokens=6, temperature=1.0, seed=4, ignore_eos=True)
        (output,) = llm.generate(ids(3), params, n=3, use_tqdm=False)
        assert [choice.index for choice in output.outputs] == [0, 1, 2]
        assert [choice.token_ids for choice in output.outputs] == [alone(ids(3), params, i) for i in range(3)]

    def test_log_probabilities(self, llm: LLM) -> None:
        params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=0)
        (output,) = llm.generate(ids(5, 70), params, use_tqdm=False)
        (only,) = output.outputs
        assert only.logprobs is not None
        assert [each.token for each in only.logprobs] == only.token_ids
        assert only.cumulative_logprob == pytest.approx(-2.5)
        assert output.prompt_logprobs is not None
        assert [each and each.token for each in output.prompt_logprobs] == [None, *ids(5, 70)[1:]]

    def test_a_refusal_comes_before_anything_runs(self, llm: LLM, executor: FakeExecutor) -> None:
        for prompts, params, kind in (
            ([ids(1), ids(2, 120)], GREEDY, NeverFits),
            ([ids(1), []], GREEDY, InvalidRequest),
            ([ids(1), [10**6]], GREEDY, InvalidRequest),
            ([ids(1)], [GREEDY, GREEDY], InvalidRequest),
            ([ids(1)], SamplingParams(stop_token_ids=(10**6,)), InvalidRequest),
        ):
            with pytest.raises(kind):
                llm.generate(prompts, params, use_tqdm=False)
        with pytest.raises(NeverFits):
            llm.generate(ids(1), GREEDY, n=9, use_tqdm=False)
        assert executor.num_steps == 0

    def test_a_request_that_fails_is_marked_and_alone(self) -> None:
        executor = FakeExecutor(CacheShape(128, 4), fail_row=lambda r: "nan" if r.prompt[0] == ids(1)[0] else None)
        with LLM.from_built(built(executor)) as llm:
            outputs = llm.generate([ids(0), ids(1), ids(2)], GREEDY, use_tqdm=False)
        reasons = [(output.outputs[0].finish_reason, output.outputs[0].error) for output in outputs]
        assert reasons == [("length", None), ("error", "nan"), ("length", None)]

    @pytest.mark.parametrize("service", [{"e2e_deadline_ms": 40}, {"ttft_deadline_ms": 0.5}])
    def test_a_missed_deadline_is_an_error(self, service: dict[str, Any]) -> None:
        params = SamplingParams(max_tokens=90, temperature=0.0, ignore_eos=True)
        with LLM.from_built(built(FakeExecutor(CacheShape(128, 4), step_s=0.002))) as llm:
            (output,) = llm.generate(ids(1), params, use_tqdm=False, **service)
            (only,) = output.outputs
            assert only.finish_reason == "deadline"
            assert only.error is not None and "deadline" in only.error
            assert only.token_ids == alone(ids(1), params)[: len(only.token_ids)]
            assert len(only.token_ids) < 90
            (streamed,) = list(llm.stream(ids(2), params, **service))[-1].outputs
            assert (streamed.finish_reason, streamed.error is None) == ("deadline", False)
            (kept,) = llm.generate(ids(3), GREEDY, use_tqdm=False, e2e_deadline_ms=60_000)
            assert (kept.outputs[0].finish_reason, kept.outputs[0].error) == ("length", None)

    def test_many_threads_at_once(self, llm: LLM) -> None:
        wrong: list[int] = []

        def call(first: int) -> None:
            prompts = [ids(first + i, 5 + i) for i in range(10)]
            for _ in range(3):
                outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
                if [output.outputs[0].token_ids for output in outputs] != [alone(prompt) for prompt in prompts]:
                    wrong.append(first)

        threads = [threading.Thread(target=call, args=(100 * i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []

    def test_a_progress_bar(self, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
        llm.generate([ids(i) for i in range(3)], GREEDY)
        shown = capsys.readouterr()
        assert "3/3" in shown.err
        assert "output tok/s" in shown.err
        assert shown.out == ""


class TestChat:
    def test_one_conversation_and_several(self, llm: LLM) -> None:
        conversations = [[{"role": "user", "content": f"Number {i}?"}] for i in range(3)]
        outputs = llm.chat(conversations, GREEDY, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == [TEXT.encode_chat(c) for c in conversations]
        (single,) = llm.chat(conversations[1], GREEDY, use_tqdm=False)
        assert single.outputs[0].token_ids == outputs[1].outputs[0].token_ids == alone(single.prompt_token_ids)

    def test_without_parameters_the_rest_of_the_context(self, llm: LLM) -> None:
        (output,) = llm.chat([{"role": "user", "content": "Go on."}], use_tqdm=False)
        ended_itself = output.outputs[0].finish_reason == "stop"
        assert ended_itself or len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 120

    def test_messages_that_make_no_sense(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequest):
            llm.chat([{"role": "user"}], use_tqdm=False)


class TestStream:
    def test_pieces_make_the_whole(self, llm: LLM, executor: FakeExecutor) -> None:
        executor.step_s = 0.002
        (whole,) = llm.generate(ids(7), GREEDY, use_tqdm=False)
        outputs = list(llm.stream(ids(7), GREEDY))
        assert len(outputs) > 1
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        pieces = [piece for output in outputs for piece in output.outputs]
        assert "".join(piece.text for piece in pieces) == whole.outputs[0].text
        assert [token for piece in pieces for token in piece.token_ids] == whole.outputs[0].token_ids

    def test_leaving_aborts(self, llm: LLM, executor: FakeExecutor) -> None:
        params = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
        executor.step_s = 0.002
        for output in llm.stream(ids(1), params):
            assert output.outputs
            break
        gc.collect()
        wait_idle(llm)
        assert executor.num_steps < 60


class TestEnd:
    def test_closing_ends_calls_in_progress(self) -> None:
        gate = threading.Semaphore(0)
        executor = FakeExecutor(CacheShape(128, 4), gate=gate)
        llm = LLM.from_built(built(executor))
        errors: list[BaseException] = []

        def call() -> None:
            try:
                llm.generate(ids(1), GREEDY, use_tqdm=False)
            except EngineDead as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        executor.submitted.acquire()
        gate.release()
        llm.close()
        thread.join(20)
        assert len(errors) == 1
        llm.close()
        with pytest.raises(EngineDead):
            llm.generate(ids(1), GREEDY, use_tqdm=False)

    def test_an_object_that_is_gone_leaves_no_thread(self, executor: FakeExecutor) -> None:
        llm = LLM.from_built(built(executor))
        thread = llm._session.engine._thread
        del llm
        gc.collect()
        thread.join(20)
        assert not thread.is_alive()

    def test_an_unknown_option_is_named(self) -> None:
        with pytest.raises(InvalidOption, match="'max_nun_seqs': is it max_num_seqs or ") as error:
            LLM(max_nun_seqs=3)
        assert "priority_ageing_s" not in str(error.value)
        with pytest.raises(InvalidOption, match="'zzz': they are called as the flags"):
            LLM(zzz=3)

    def test_options_are_written_as_for_their_flags(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[EngineOptions] = []

        def fake(options: EngineOptions, chat_template: GivenTemplate | None) -> Built:
            asked.append(options)
            return built(FakeExecutor(CacheShape(128, 4)))

        monkeypatch.setattr("chairlift.llm.build", fake)
        LLM(kv_cache_memory_bytes="10M", max_model_len="1k", dtype="bf16", kv_cache_dtype="float").close()
        AsyncLLM(kv_cache_memory_bytes=5, dtype="int8").close()
        found = [(one.kv_cache_memory_bytes, one.max_model_len, one.dtype, one.kv_cache_dtype) for one in asked]
        assert found == [(10 << 20, 1000, "bfloat16", "float32"), (5, None, "int8", "auto")]
        for options in ({"kv_cache_memory_bytes": "lots"}, {"dtype": "half"}, {"embedding_dtype": "fp16"}):
            with pytest.raises(InvalidOption, match=f"^{next(iter(options))}: "):
                LLM(**options)

    def test_a_failing_device_fails_each_request(self) -> None:
        def fail(plan: StepPlan) -> None:
            raise MemoryError

        with LLM.from_built(built(FakeExecutor(CacheShape(128, 4), fail_step=fail))) as llm:
            outputs = llm.generate([ids(i) for i in range(20)], GREEDY, use_tqdm=False)
        assert {output.outputs[0].finish_reason for output in outputs} == {"error"}


def wait_idle(llm: LLM | AsyncLLM) -> None:
    """Until nothing is in flight; then every block is free."""
    engine = llm._session.built.engine
    deadline = time.monotonic() + 20
    while engine.has_work and time.monotonic() < deadline:
        time.sleep(0.002)
    assert not engine.has_work
    assert engine.stats().num_used_blocks == 0


class TestAsync:
    def run(self, executor: FakeExecutor, main: Callable[[AsyncLLM], AsyncIterator[None]]) -> None:
        async def body() -> None:
            async with AsyncLLM.from_built(built(executor)) as llm:
                async for _ in main(llm):
                    pass
                await asyncio.to_thread(wait_idle, llm)

        asyncio.run(body())
        assert executor.violations == []

    def test_streams_side_by_side(self, executor: FakeExecutor) -> None:
        async def collect(llm: AsyncLLM, prompt: list[int]) -> list[int]:
            outputs = [output async for output in llm.generate(prompt, GREEDY)]
            assert [output.finished for output in outputs][-1:] == [True]
            return [token for output in outputs for token in output.outputs[0].token_ids]

        async def main(llm: AsyncLLM) -> AsyncIterator[None]:
            prompts = [ids(i, 3 + i) for i in range(30)]
            answers = await asyncio.gather(*(collect(llm, prompt) for prompt in prompts))
            assert answers == [alone(prompt) for prompt in prompts]
            yield

        self.run(executor, main)

    def test_leaving_at_any_point_frees_everything(self, executor: FakeExecutor) -> None:
        executor.step_s = 0.001
        params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)

        async def leave(llm: AsyncLLM, number: int) -> None:
            outputs = llm.generate(ids(number, 20), params, n=1 + number % 2)
            async with aclosing(outputs):
                for _ in range(number % 9):
                    await anext(outputs)

        async def cancelled(llm: AsyncLLM, number: int) -> None:
            async def use() -> list[RequestOutput]:
                return [output async for output in llm.chat([{"role": "user", "content": str(number)}], params)]

            task = asyncio.create_task(use())
            await asyncio.sleep(0.001 * (number % 20))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def main(llm: AsyncLLM) -> AsyncIterator[None]:
            await asyncio.gather(*(leave(llm, i) for i in range(40)), *(cancelled(llm, i) for i in range(40)))
            yield

        self.run(executor, main)

    def test_a_request_that_never_fits(self, executor: FakeExecutor) -> None:
        async def main(llm: AsyncLLM) -> AsyncIterator[None]:
            with pytest.raises(NeverFits):
                await anext(llm.generate(ids(1, 500), GREEDY))
            yield

        self.run(executor, main)

    def test_closing_ends_streams(self, executor: FakeExecutor) -> None:
        executor.step_s = 0.002

        async def body() -> None:
            llm = AsyncLLM.from_built(built(executor))
            outputs = llm.generate(ids(1), SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True))
            async with aclosing(outputs):
                await anext(outputs)
                await asyncio.to_thread(llm.close)
                with pytest.raises(EngineDead):
                    async for _ in outputs:
                        pass

        asyncio.run(body())


@pytest.fixture(scope="module")
def real() -> Iterator[LLM]:
    with LLM(
        max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256, kv_cache_memory_bytes=64 << 20, seed=1
    ) as llm:
        yield llm


class TestRealModel:
    def test_it_knows_a_capital(self, real: LLM) -> None:
        (output,) = real.generate("The capital of France is", GREEDY, use_tqdm=False)
        assert output.outputs[0].text.startswith(" Paris")

    def test_it_answers_and_ends(self, real: LLM) -> None:
        params = SamplingParams(max_tokens=100, temperature=0.0)
        (output,) = real.chat([{"role": "user", "content": "What is 2+2? Answer briefly."}], params, use_tqdm=False)
        (only,) = output.outputs
        assert only.finish_reason == "stop"
        assert only.stop_reason is None
        assert only.token_ids[-1] in TEXT.eos_token_ids
        assert "4" in only.text
        assert "<|im_end|>" not in only.text

    def test_a_stop_string_ends_the_sequence_and_is_not_in_the_text(self, real: LLM) -> None:
        params = SamplingParams(max_tokens=60, temperature=0.0, stop=(" is",), ignore_eos=True)
        prompt = "Once upon a time, there was a king who said: the weather"
        (free,) = real.generate(prompt, SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True), use_tqdm=False)
        assert " is" in free.outputs[0].text
        (output,) = real.generate(prompt, params, use_tqdm=False)
        (only,) = output.outputs
        assert (only.finish_reason, only.stop_reason) == ("stop", " is")
        assert only.text == free.outputs[0].text.partition(" is")[0]
        assert len(only.token_ids) < 60
        streamed = "".join(piece.text for each in real.stream(prompt, params) for piece in each.outputs)
        assert streamed == only.text

    def test_threads_and_streams_leave_every_block_free(self, real: LLM) -> None:
        def call(number: int) -> None:
            stream = real.stream(f"Number {number} and then", SamplingParams(max_tokens=30, temperature=1.0))
            for count, _ in enumerate(stream):
                if count == number:
                    break
            stream.close()
            real.generate([f"{number} is", f"{number} was"], GREEDY, use_tqdm=False)

        threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        wait_idle(real)
