"""What single passes give to callers of the offline API: embeddings, labels and scores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from chairlift.core.errors import InvalidRequest
from chairlift.core.types import NO_SAMPLING, Finish, PoolingParams, Request
from chairlift.text.passages import Passage
from chairlift.worker.answers import Answer
from chairlift.worker.arguments import Prompt, checked, deadline, tenant_name, token_ids, whole_priority
from chairlift.worker.encoder import BuiltEncoder
from chairlift.worker.local import LocalEngine, QueueReader

Floats = NDArray[np.float32]
Item = Prompt | tuple[str, str]
"""A text, token ids, or a pair of texts."""

_NOTHING = np.zeros(0, np.float32)


@dataclass(slots=True)
class EmbeddingOutput:
    """A text and its vector, float32; without numbers if it failed, and `error` says why."""

    prompt_token_ids: list[int]
    embedding: Floats = field(default_factory=lambda: _NOTHING)
    error: str | None = None
    metrics: Finish | None = None


@dataclass(slots=True)
class ClassificationOutput:
    """A text, the label that fits best, and the score of every label in the model's order."""

    prompt_token_ids: list[int]
    label: str | None = None
    probs: Floats = field(default_factory=lambda: _NOTHING)
    error: str | None = None
    metrics: Finish | None = None


class Texts:
    """Reads texts with an encoder whose engine runs on a thread."""

    def __init__(self, engine: LocalEngine, built: BuiltEncoder) -> None:
        self._engine = engine
        self._built = built

    def embed(
        self,
        prompts: Sequence[Prompt],
        *,
        normalize: bool | None,
        dimensions: int | None,
        truncate: bool,
        priority: int,
        tenant: str,
        e2e_deadline_ms: float | None,
        use_tqdm: bool,
    ) -> list[EmbeddingOutput]:
        """One vector for each text, in their order."""
        config = self._built.encoder.config
        if config.head != "none":
            raise InvalidRequest("this model classifies texts and gives no embeddings")
        if dimensions is not None and not 1 <= dimensions <= config.hidden_size:
            raise InvalidRequest(f"dimensions must be between 1 and {config.hidden_size}", "dimensions")
        params = PoolingParams("embed", normalize, dimensions)
        answers = self._read(prompts, params, truncate, priority, tenant, e2e_deadline_ms, use_tqdm)
        return [EmbeddingOutput(list(a.request.prompt), _numbers(a), _error(a), a.choices[0].finish) for a in answers]

    def classify(
        self, prompts: Sequence[Prompt], *, activate: bool, truncate: bool, priority: int, tenant: str, use_tqdm: bool
    ) -> list[ClassificationOutput]:
        """The scores of every label, for each text in order."""
        config = self._built.encoder.config
        if config.head == "none":
            raise InvalidRequest("this model gives embeddings and classifies nothing")
        params = PoolingParams("classify", activate=activate)
        outputs = []
        for answer in self._read(prompts, params, truncate, priority, tenant, None, use_tqdm):
            probs = _numbers(answer)
            label = config.labels[int(probs.argmax())] if len(probs) else None
            tokens = list(answer.request.prompt)
            outputs.append(ClassificationOutput(tokens, label, probs, _error(answer), answer.choices[0].finish))
        return outputs

    def score(
        self, pairs: Sequence[tuple[str, str]], *, activate: bool, truncate: bool, priority: int, use_tqdm: bool
    ) -> list[float]:
        """How well the texts of each pair go together: by a cross-encoder, or the cosine of their embeddings."""
        config = self._built.encoder.config
        if config.head == "none":
            texts = list(dict.fromkeys(text for pair in pairs for text in pair))
            params = PoolingParams("embed", normalize=True)
            answers = self._read(texts, params, truncate, priority, "", None, use_tqdm)
            vectors = dict(zip(texts, map(_whole, answers), strict=True))
            return [float(vectors[one] @ vectors[two]) for one, two in pairs]
        if len(config.labels) != 1:
            raise InvalidRequest(f"this model tells {len(config.labels)} labels apart and scores no pairs")
        params = PoolingParams("classify", activate=activate)
        return [float(_whole(a)[0]) for a in self._read(pairs, params, truncate, priority, "", None, use_tqdm)]

    def _read(
        self,
        items: Sequence[Item],
        params: PoolingParams,
        truncate: bool,
        priority: int,
        tenant: str,
        e2e_deadline_ms: float | None,
        use_tqdm: bool,
    ) -> list[Answer]:
        arrival = time.monotonic()
        requests = [self._request(item, params, truncate, arrival, priority, tenant, e2e_deadline_ms) for item in items]
        reader = QueueReader()
        answers: list[Answer] = []
        try:
            answers.extend(self._engine.start(request, reader) for request in requests)
            with tqdm(total=len(requests), unit="text", disable=not use_tqdm, dynamic_ncols=True) as bar:
                num_open = len(requests)
                while num_open:
                    news = reader.take()
                    num_open -= len(news)
                    bar.update(len(news))
        finally:
            for answer in answers:
                self._engine.abort(answer)
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return answers

    def _request(
        self,
        item: Item,
        params: PoolingParams,
        truncate: bool,
        arrival: float,
        priority: int,
        tenant: str,
        e2e_deadline_ms: float | None,
    ) -> Request:
        limits = self._built.limits
        passage = self._passage(item, limits.max_model_len if truncate else None)
        request = Request(
            id=self._engine.new_id(),
            prompt=passage.tokens,
            params=NO_SAMPLING,
            arrival=arrival,
            priority=whole_priority(priority),
            tenant=tenant_name(tenant),
            e2e_deadline=deadline("e2e_deadline_ms", arrival, e2e_deadline_ms),
            pooling=replace(params, num_first=passage.num_first),
        )
        return checked(request, limits, self._built.encoder.config.vocab_size)

    def _passage(self, item: Item, most: int | None) -> Passage:
        passages = self._built.passages
        if isinstance(item, str):
            return passages.encode(item, most)
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], str):
            return passages.encode_pair(item[0], item[1], most)
        ids = token_ids(item)
        return passages.around(ids if most is None else ids[:most])


def each_pair(first: str | Iterable[str], second: str | Iterable[str]) -> list[tuple[str, str]]:
    """One text with each of the others, or two lists pair by pair.

    Raises:
        InvalidRequest: lists that do not go together.
    """
    ones = [first] if isinstance(first, str) else list(first)
    twos = [second] if isinstance(second, str) else list(second)
    if len(ones) == 1:
        ones *= len(twos)
    if len(ones) != len(twos) or not all(isinstance(text, str) for text in (*ones, *twos)):
        raise InvalidRequest("score takes one text and others, or as many first texts as second ones")
    return list(zip(ones, twos, strict=True))


def _numbers(answer: Answer) -> Floats:
    return _NOTHING if answer.vector is None else np.frombuffer(answer.vector, "<f4").astype(np.float32)


def _error(answer: Answer) -> str | None:
    finish = answer.choices[0].finish
    if answer.vector is not None or finish is None:
        return None
    return finish.error or str(finish.reason)


def _whole(answer: Answer) -> Floats:
    """The numbers of a text without which there is no score."""
    error = _error(answer)
    if error is not None:
        raise InvalidRequest(f"a text could not be read: {error}")
    return _numbers(answer)
