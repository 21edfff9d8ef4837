"""What a request must satisfy before it is queued: what can never be served is refused here, not found later."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

from chairlift.core.errors import InvalidRequest, NeverFits
from chairlift.core.types import BlockKeys, PoolingParams, Request

ANY_TOKEN = 1 << 32
"""Size of a vocabulary of all numbers that the prefix index can tell apart."""


def check_request(
    request: Request, *, max_model_len: int, max_num_seqs: int, vocab_size: int, keyed_block_size: int | None = None
) -> None:
    """Refuse what can never be served. A request may bring keys for blocks of `keyed_block_size` tokens; None: no keys.

    Raises:
        InvalidRequest: an empty prompt, a token id outside the vocabulary, a minimum length that no token may fill, or
            keys that this engine cannot go by, or a single pass with more than one answer.
        NeverFits: a prompt that leaves no room for a token of output, or more choices than there are slots.
    """
    if not request.prompt:
        raise InvalidRequest("the prompt is empty", "prompt")
    if request.pooling is not None:
        _check_pooled(request, request.pooling, max_model_len)
    elif len(request.prompt) >= max_model_len:
        raise NeverFits(
            f"the prompt has {len(request.prompt)} tokens; at most {max_model_len - 1} fit into the context of "
            f"{max_model_len} with at least one token of output",
            "prompt",
        )
    if not isinstance(request.n, int) or isinstance(request.n, bool):
        raise InvalidRequest("n must be an integer", "n")
    if not 1 <= request.n <= max_num_seqs:
        raise NeverFits(f"n must be between 1 and {max_num_seqs}", "n")
    params = request.params
    num_unread = 0
    if request.block_keys is not None:
        _check_keys(request.block_keys, len(request.prompt), keyed_block_size)
        num_unread = request.block_keys.num_tokens
    if vocab_size != ANY_TOKEN:  # a simulator's prompts are checked as they are read, and are many
        _check_tokens("prompt", request.prompt[num_unread:] if num_unread else request.prompt, vocab_size)
    _check_tokens("eos_token_ids", request.eos_token_ids, vocab_size)
    _check_tokens("stop_token_ids", params.stop_token_ids, vocab_size)
    if params.logit_bias:
        _check_tokens("logit_bias", [token for token, _ in params.logit_bias], vocab_size)
    if params.allowed_token_ids:
        _check_tokens("allowed_token_ids", params.allowed_token_ids, vocab_size)
    if params.min_tokens and not _may_go_on(request, vocab_size):
        raise InvalidRequest(
            "min_tokens cannot be reached: every token that is allowed would end the answer", "min_tokens"
        )


def _check_keys(given: BlockKeys, num_prompt: int, block_size: int | None) -> None:
    """Whether the keys are for blocks like ours, no more than the prompt has full ones, and numbers."""
    if block_size is None:
        raise InvalidRequest("this engine goes by tokens: it takes no keys for blocks", "block_keys")
    if given.block_size != block_size:
        raise InvalidRequest(
            f"the keys are for blocks of {given.block_size} tokens; this engine has blocks of {block_size}",
            "block_keys",
        )
    if given.num_tokens > num_prompt:
        raise InvalidRequest(
            f"{len(given.keys)} keys for blocks of {block_size} tokens are too many for a prompt of {num_prompt}",
            "block_keys",
        )
    try:
        array("Q", given.keys)
    except (OverflowError, TypeError):
        raise InvalidRequest("a key for a block must be an integer from 0 to below 2^64", "block_keys") from None


def _check_pooled(request: Request, pooling: PoolingParams, max_model_len: int) -> None:
    if len(request.prompt) > max_model_len:
        raise NeverFits(f"the text has {len(request.prompt)} tokens; at most {max_model_len} can be read", "input")
    if request.n != 1:
        raise InvalidRequest("n must be 1: a single pass gives one vector", "n")
    if not 0 <= pooling.num_first <= len(request.prompt):
        raise InvalidRequest("the first of two texts must lie inside the prompt", "num_first")


def _check_tokens(name: str, ids: Seq[int], vocab_size: int) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        raise InvalidRequest(f"{name} has a token id outside 0 .. {vocab_size - 1}", name)


def _may_go_on(request: Request, vocab_size: int) -> bool:
    """Whether a token is left before the minimum length, where none may be sampled that ends the answer."""
    ends = {*request.eos_token_ids, *request.params.stop_token_ids}
    allowed = request.params.allowed_token_ids
    return len(ends) < vocab_size if allowed is None else not ends.issuperset(allowed)
