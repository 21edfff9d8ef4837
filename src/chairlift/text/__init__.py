"""Text to tokens and back: tokenizers, chat templates, incremental text, stop strings."""

from chairlift.text.chat import ChatTemplate
from chairlift.text.loading import Text, load_text
from chairlift.text.stops import StopAutomaton, StopMatcher
from chairlift.text.stream import TextStream
from chairlift.text.template_sources import GivenTemplate, given_template
from chairlift.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "GivenTemplate",
    "StopAutomaton",
    "StopMatcher",
    "Text",
    "TextStream",
    "Tokenizer",
    "given_template",
    "load_text",
]
