"""Ten simple questions, and what a model's own numbers answer: greedy, by the oracle, in float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from chairlift.executors.forward import ReferenceModel, empty_caches, weights_of
from chairlift.models import DEFAULT_MODEL, open_model, resolve
from chairlift.text import Text, load_text

STORED = Path(__file__).with_name("answers.json")
MODELS = (DEFAULT_MODEL, "gemma-3-270m")
NUM_TOKENS = 16
QUESTIONS = (
    "What is the capital of France?",
    "What color is the sky on a clear day?",
    "How many days are there in a week?",
    "What is two plus two?",
    "Who wrote Romeo and Juliet?",
    "What do bees make?",
    "Which planet do we live on?",
    "What is the opposite of hot?",
    "What language is spoken in Brazil?",
    "At what temperature does water freeze?",
)


def prompts(text: Text) -> list[list[int]]:
    """The questions as a chat, or for a model without a template as a text to continue."""
    if text.chat_template is None:
        return [text.tokenizer.encode(f"Question: {question}\nAnswer:") for question in QUESTIONS]
    return [text.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]


def exact_answers(name: str) -> list[dict[str, list[float]]]:
    """The oracle's `tokens` of each answer, and by how much the logit of each was ahead of the second: `margins`."""
    model = open_model(resolve(name))
    text, config = load_text(model), model.config
    oracle = ReferenceModel(config, weights_of(model))
    answers = []
    for prompt in prompts(text):
        keys, values = empty_caches(config, len(prompt) + NUM_TOKENS)
        tokens: list[float] = []
        margins: list[float] = []
        new, start = prompt, 0
        while len(tokens) < NUM_TOKENS and not (tokens and tokens[-1] in text.eos_token_ids):
            logits = oracle.forward(new, start, keys, values)[-1]
            second, best = np.argsort(logits)[-2:].tolist()
            tokens.append(best)
            margins.append(round(float(logits[best] - logits[second]), 4))
            new, start = [best], start + len(new)
        answers.append({"tokens": tokens, "margins": margins})
    return answers


def stored_answers(name: str) -> list[list[int]]:
    """The tokens of each answer, as `make_answers.py` stored them."""
    return [answer["tokens"] for answer in json.loads(STORED.read_text())[name]]
