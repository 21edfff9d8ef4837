"""The tests are themselves tested: defects that such schedulers have had, put into ours one at a time, must be found.

A mutant is a place in `src/chairlift/core` and what stands there instead. It is compiled in memory, and the functions
that differ get its code for the length of the test. Most must be found by the swarm; some, which change what is served
first or charged but break nothing, by the named test that says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import CodeType, FunctionType, ModuleType

import pytest

from chairlift.core import (
    background,
    batching,
    blocks,
    deadlines,
    fairness,
    kv,
    ordering,
    planner,
    prefix,
    running,
    scheduler,
    sequence,
    waits,
)
from core import test_background, test_block_keys, test_fairness, test_precedence, test_scheduler
from core.swarm import run

NUM_SEEDS = 60
NUM_STEPS = 200


@dataclass(frozen=True)
class Mutant:
    defect: str
    module: ModuleType
    line: str
    instead: str
    by: Callable[[], None] | None = None
    """The test that finds it; the swarm, if none is named."""
    quick: bool = False
    """Whether it is tried in every run."""


MUTANTS = [
    # ------------------------------------------------ blocks and their references
    Mutant("a shared block is not counted", blocks, "all_refs[block] += 1", "all_refs[block] += 0", quick=True),
    Mutant("a found block stays free", blocks, "del kept[block]", "pass"),
    Mutant("an overwritten block can still be found", blocks, "return block, True", "return block, False"),
    Mutant(
        "the block used last is overwritten first",
        blocks,
        "popitem(last=False)",
        "popitem(last=True)",
        test_precedence.test_kept_blocks_are_used_again_least_recently_used_first,
    ),
    Mutant(
        "one block is never given back",
        kv,
        "self.pool.drop(reversed(sequence.blocks)",
        "self.pool.drop(reversed(sequence.blocks[1:])",
        quick=True,
    ),
    Mutant(
        "a block is given back twice",
        kv,
        "keep=self.index.published)",
        "keep=self.index.published); self.pool.drop(sequence.blocks, ())",
    ),
    Mutant(
        "a reference is put on the wrong block",
        kv,
        "self.pool.retain(blocks)",
        "self.pool.retain(blocks[:1] * len(blocks))",
    ),
    Mutant(
        "more blocks are taken than there are",
        planner,
        "len(sequence.blocks), kv.pool.num_free)",
        "len(sequence.blocks), kv.pool.num_blocks)",
    ),
    # ------------------------------------------------ the prefix cache
    Mutant(
        "a hit leaves nothing to compute",
        kv,
        "limit = len(sequence.tokens) - 1",
        "limit = len(sequence.tokens)",
        quick=True,
    ),
    Mutant("a hit skips what was to be scored", kv, "limit = min(limit, sequence.scored)", "pass"),
    Mutant(
        "a hit has a hole",
        kv,
        "if block is None:\n                break",
        "if block is None:\n                continue",
    ),
    Mutant(
        "a block is found before it is computed",
        planner,
        "plan.num_chunk_tokens += count",
        "plan.num_chunk_tokens += count; kv.publish(sequence, start + count)",
        quick=True,
    ),
    Mutant(
        "a block is found before it is full",
        kv,
        "range(sequence.published, computed // self.block_size)",
        "range(sequence.published, len(sequence.blocks))",
    ),
    Mutant(
        "other tenants' blocks are found by keys",
        prefix,
        'return b"\\0" + given.keys[i].to_bytes(8, "little") if request.salt else given.keys[i]',
        "return given.keys[i]",
        test_block_keys.test_keys_find_nothing_under_another_salt,
    ),
    Mutant(
        "a key is found after another beginning",
        prefix,
        "if entry is None or entry[1] != parent:",
        "if entry is None:",
        test_block_keys.test_a_key_that_was_given_after_another_beginning_is_a_miss,
    ),
    Mutant("other tenants' blocks are found", prefix, 'sha256(len(salt).to_bytes(8, "little") + salt)', 'sha256(b"")'),
    Mutant(
        "a key forgets what came before the block",
        prefix,
        "return sha256(parent + content).digest()",
        "return sha256(content).digest()",
    ),
    Mutant(
        "two blocks have one key",
        prefix,
        "if key not in self._blocks and block not in self._keys",
        "if block not in self._keys",
    ),
    Mutant(
        "what a failed sequence computed is found",
        scheduler,
        "self.kv.distrust(sequence)",
        "pass",
        test_scheduler.test_nothing_of_a_failed_sequence_is_found_again,
    ),
    Mutant(
        "a row that fails frees what it published while others read it",
        kv,
        "for block in sequence.blocks:\n            self.index.forget(block)",
        "for block in sequence.blocks:\n            self.index.forget(block); self.pool.drop([block], ())",
    ),
    Mutant(
        "others wait for a prefix nobody computes",
        kv,
        "for key in sequence.awaited:",
        "for key in sequence.awaited[:0]:",
    ),
    Mutant(
        "nobody waits for a prefix that is being computed",
        kv,
        "return owner is not None and owner.order[0] <= sequence.order[0]",
        "return False",
        test_precedence.test_a_prompt_that_several_share_is_computed_once,
    ),
    Mutant(
        "a better level waits for a lesser one's prefix",
        kv,
        "return owner is not None and owner.order[0] <= sequence.order[0]",
        "return owner is not None",
        test_precedence.test_a_better_level_waits_for_no_lesser_one_to_compute_a_prompt,
    ),
    # ------------------------------------------------ slots and rows
    Mutant(
        "a preempted row stays in the executor",
        running,
        "if sequence.joined:",
        "if sequence.joined and state is State.GONE:",
    ),
    Mutant(
        "a row that left decodes on",
        running,
        "if sequence.state is DECODING:\n            self._changed = True",
        "if sequence.state is State.GONE:\n            self._changed = True",
    ),
    Mutant("slot 0 is never given back", running, "if sequence.slot >= 0:", "if sequence.slot > 0:"),
    Mutant(
        "choices take slots that there are not",
        planner,
        "if not is_first and 1 + self._num_followers(sequence) > room:",
        "if not is_first and 1 > room:",
    ),
    Mutant(
        "the sum of contexts drifts",
        running,
        "self.num_context_tokens += num_rows",
        "self.num_context_tokens += 1",
    ),
    Mutant("what is shared is not counted", blocks, "self.num_repeats += 1", "pass"),
    Mutant("what was shared is counted for ever", blocks, "self.num_repeats -= 1", "pass"),
    Mutant(
        "more is shared than there is",
        planner,
        "min(self._kv.num_shared_tokens, plan.num_context_tokens)",
        "self._kv.num_shared_tokens",
    ),
    # ------------------------------------------------ batches that are held
    Mutant("a held batch is joined in the middle", batching, "num_running == 0 and (", "(", quick=True),
    Mutant(
        "a batch opens before it is full or due", batching, "(num_waiting >= max_num_seqs or is_due)", "num_waiting"
    ),
    Mutant("a batch that is due does not open", planner, "is_due = is_due or (", "is_due = is_due and ("),
    Mutant("a batch waits for what cannot come", scheduler, "self._planner.closed = True", "pass"),
    Mutant(
        "fillers leave before their batch is over",
        scheduler,
        "if self._running.held and not self._running.num_live:",
        "if self._running.held:",
    ),
    Mutant("fillers never leave", scheduler, "if self._running.held and not self._running.num_live:", "if False:"),
    Mutant(
        "a filler is forgotten",
        running,
        "self.fillers = [*self.fillers, sequence.slot]",
        "self.fillers = [sequence.slot]",
    ),
    Mutant(
        "fillers come further",
        running,
        "self.num_context_tokens += num_rows",
        "self.num_context_tokens += num_rows; self.num_filler_tokens += len(self.held)",
    ),
    Mutant(
        "what failed or was aborted becomes a filler",
        scheduler,
        "if self._planner.batching.holds and reason in (FinishReason.STOP, FinishReason.LENGTH):",
        "if self._planner.batching.holds and sequence.state is State.DECODING:",
    ),
    Mutant(
        "less is reserved than may come",
        planner,
        "reserved = sequence.end if self.reserves_max else start + count",
        "reserved = start + count",
    ),
    # ------------------------------------------------ budget and boundaries
    Mutant(
        "decoding rows are not in the budget", planner, "- len(plan.decodes) - len(plan.fillers)", "- len(plan.fillers)"
    ),
    Mutant("a chunk is larger than the budget", planner, "count = min(lacking, budget)", "count = lacking"),
    Mutant(
        "a long prompt has all tokens beside those who decode",
        planner,
        "if 0 < self.threshold < count and self._has_company(plan):",
        "if 0 < self.threshold < count and not self._has_company(plan):",
    ),
    Mutant(
        "a prompt is cut although that is off",
        planner,
        "elif count < lacking:\n            return 0",
        "elif count < lacking:\n            pass",
    ),
    Mutant(
        "decodes are mixed in where prefill goes first",
        planner,
        "            if not plan.chunks:\n                self._fill_decodes",
        "            if plan is not None:\n                self._fill_decodes",
    ),
    Mutant(
        "a sequence joins without a token",
        planner,
        "if not holds and (share <= 0 or",
        "if not holds and share > 0 and (",
    ),
    Mutant(
        "a block is asked for one token late",
        scheduler,
        "if computed % block_size == 0:",
        "if computed % block_size == 1 % block_size:",
    ),
    Mutant("a full block is noticed one token late", scheduler, "* block_size + 1)", "* block_size + 2)"),
    Mutant(
        "the length is noticed at the block's end",
        scheduler,
        "sequence.mark = min(sequence.end, (",
        "sequence.mark = max(0, (",
    ),
    Mutant("one token too many", sequence, "len(self.tokens) >= self.end", "len(self.tokens) > self.end"),
    Mutant(
        "a change of limits is lost",
        scheduler,
        "limits.max_num_seqs, limits.max_num_batched_tokens = max_num_seqs, max_tokens",
        "pass",
    ),
    # ------------------------------------------------ who joins
    Mutant(
        "the queue stops at a head that does not fit",
        planner,
        "reason in (WaitReason.BLOCKS, WaitReason.PREFIX, WaitReason.SLOTS)",
        "reason is None",
        quick=True,
    ),
    Mutant(
        "one that does not fit is passed for ever",
        planner,
        "and sequence.passed < self.policy.max_bypass",
        "",
        quick=True,
    ),
    Mutant("nobody counts who is passed", planner, "passed.passed += 1", "passed.passed += 0"),
    Mutant(
        "one that was preempted for blocks is passed",
        planner,
        "and not (sequence.preemptions and reason is WaitReason.BLOCKS)",
        "",
    ),
    Mutant(
        "one that was looked past is lost",
        planner,
        "for sequence, _ in self.set_aside:",
        "for sequence, _ in self.set_aside[1:]:",
    ),
    Mutant(
        "one that was looked past stands twice",
        planner,
        "for sequence, _ in self.set_aside:\n            waiting.push_back(sequence)",
        "for sequence, _ in self.set_aside:\n            waiting.push_back(sequence); waiting.push_back(sequence)",
    ),
    Mutant(
        "blocks are promised twice",
        planner,
        "promised = sum(self._num_needed(s) - len(s.blocks) for s in self._running.prefilling)",
        "promised = 0",
    ),
    Mutant(
        "who joins forgets those who joined before it", planner, "promised += num_needed - len(sequence.blocks)", "pass"
    ),
    Mutant(
        "nothing is left for those who run",
        planner,
        "return 0 if self.reserves_max else 1 + int(self.policy.watermark * self._kv.pool.num_blocks)",
        "return 0",
    ),
    Mutant(
        "who was just preempted comes right back",
        planner,
        "            if self.num_preemptions == num_preemptions:\n                self._admit",
        "            if self.num_preemptions >= num_preemptions:\n                self._admit",
    ),
    Mutant(
        "the last to come is served first",
        ordering,
        "heappush(self._heap, (sequence.order, self._num_pushed, sequence))",
        "heappush(self._heap, ((0, -self._num_pushed, 0, 0), self._num_pushed, sequence))",
    ),
    Mutant(
        "a preempted sequence goes to the end of the queue",
        ordering,
        "heappush(self._heap, (sequence.order, self._num_pushed, sequence))",
        "heappush(self._heap, ((0, self._num_pushed, 0, 0), self._num_pushed, sequence))",
    ),
    Mutant(
        "deadlines have no say in the order",
        scheduler,
        'if self.policy.scheduling_policy != "deadline":',
        "if self.policy:",
    ),
    Mutant("priority has no say in the order", scheduler, "order = (request.priority, self", "order = (0, self"),
    Mutant(
        "ageing moves one above all others",
        ordering,
        "sequence.set_level(self._levels[better])",
        "sequence.set_level(self._levels[0] - 1)",
    ),
    Mutant(
        "ageing never moves anybody",
        ordering,
        "if better >= 0:",
        "if better >= 1 << 30:",
        test_precedence.test_ageing_moves_up_to_the_next_level_that_somebody_waits_at,
    ),
    Mutant(
        "ageing moves one to the top at once",
        ordering,
        "sequence.set_level(self._levels[better])",
        "sequence.set_level(self._levels[0])",
        test_precedence.test_ageing_moves_up_to_the_next_level_that_somebody_waits_at,
    ),
    Mutant(
        "ageing does not wait",
        ordering,
        "sequence.ages_at = max(now + self._ageing_s,",
        "sequence.ages_at = max(now + self._ageing_s / 2,",
        test_precedence.test_ageing_moves_up_to_the_next_level_that_somebody_waits_at,
    ),
    Mutant(
        "a prompt that must come whole waits while others fill its room",
        planner,
        "if granted or self.policy.enable_chunked_prefill else 0",
        "if granted or self.policy else 0",
        test_precedence.test_a_choice_whose_rest_of_the_prompt_must_be_whole_is_not_starved_by_those_who_come_later,
    ),
    Mutant(
        "an early long prompt has all tokens until it is done",
        planner,
        "budget = self._admit(plan, budget, now, before=sequence)",
        "pass",
        test_precedence.test_a_better_claim_goes_before_prompts_that_are_half_computed,
    ),
    # ------------------------------------------------ fairness
    Mutant(
        "cached tokens are charged",
        planner,
        "sequence.num_prompt - num_cached if",
        "sequence.num_prompt if",
        test_fairness.test_in_the_end_each_is_charged_what_it_got,
    ),
    Mutant(
        "expected outputs are charged for good",
        fairness,
        "self._charge(sequence, unused, sequence.num_output - sequence.paid_outputs)",
        "pass",
        test_fairness.test_in_the_end_each_is_charged_what_it_got,
    ),
    Mutant(
        "weights are ignored",
        fairness,
        "self.service[name] += amount / weight",
        "self.service[name] += amount",
        test_fairness.test_weights_are_shares,
    ),
    Mutant(
        "a newcomer has all the past to catch up with",
        fairness,
        "max(self.service.get(name, 0.0), min(floor, self._floor))",
        "self.service.get(name, 0.0)",
        test_fairness.test_who_pauses_saves_nothing_up,
    ),
    Mutant(
        "invented tenants gain",
        sequence,
        "self.owner = request.principal, request.tenant",
        "self.owner = request.principal + request.tenant, request.tenant",
        test_fairness.test_invented_tenants_gain_nothing,
    ),
    Mutant(
        "long outputs are charged at the end only",
        fairness,
        "if num_outputs > sequence.paid_outputs:",
        "if num_outputs < 0:",
        test_fairness.test_long_outputs_are_charged_as_they_grow,
    ),
    Mutant("who has had most goes next", fairness, "least = min([", "least = max(["),
    Mutant("equals go by their names' last arrival", fairness, "return min(firsts, key=_in_line)", "return firsts[0]"),
    # ------------------------------------------------ preemption
    Mutant(
        "the first in the order may be the victim",
        planner,
        "if s.rank > sequence.rank and s.blocks",
        "if s is not sequence and s.blocks",
    ),
    Mutant("a victim frees nothing", planner, "(s for s in later if self._kv.frees_some(s))", "iter(later)"),
    Mutant(
        "nobody makes room",
        planner,
        "if not later:\n                return False",
        "if later or not later:\n                return False",
    ),
    Mutant(
        "a preempted row gets a block",
        planner,
        "if sequence.state is not State.DECODING or not self._kv.is_full(sequence):",
        "if sequence.state is State.GONE or not self._kv.is_full(sequence):",
    ),
    Mutant(
        "a preempted sequence loses its last token",
        planner,
        "sequence.preemptions.append(",
        "del sequence.tokens[max(sequence.num_prompt, len(sequence.tokens) - 1) :]; sequence.preemptions.append(",
        quick=True,
    ),
    Mutant(
        "a preempted sequence is queued twice",
        planner,
        "self._waiting.push(sequence, now)\n",
        "self._waiting.push(sequence, now); self._waiting.push(sequence, now)\n",
    ),
    Mutant("a preempted sequence is never queued", planner, "self._waiting.push(sequence, now)\n", "\n"),
    Mutant(
        "equals are preempted for priority", planner, "least = max(head.order[0] + 1,", "least = max(head.order[0],"
    ),
    Mutant(
        "one is preempted although it does not help",
        planner,
        "if slots < num_slots or blocks < num_blocks:",
        "if slots < num_slots:",
        test_precedence.test_nobody_is_preempted_whose_blocks_do_not_suffice,
    ),
    Mutant(
        "slots of the victims do not suffice",
        planner,
        "if slots < num_slots or blocks < num_blocks:",
        "if blocks < num_blocks:",
        test_precedence.test_nobody_is_preempted_whose_slot_does_not_suffice,
    ),
    Mutant(
        "the first of the lesser goes, not the last",
        planner,
        "victim = victims.pop()",
        "victim = victims.pop(0)",
        test_precedence.test_src_vllm_45561_40004_a_better_level_takes_a_slot_at_once_and_an_equal_one_does_not,
    ),
    Mutant(
        "a better level waits for a slot",
        planner,
        "            self._yield_to_priority(now)\n",
        "            pass\n",
        test_precedence.test_src_vllm_45561_40004_a_better_level_takes_a_slot_at_once_and_an_equal_one_does_not,
    ),
    Mutant(
        "a chunk goes from the prompt into the output",
        planner,
        "return (sequence.num_prompt if start < sequence.num_prompt else len(sequence.tokens)) - start",
        "return len(sequence.tokens) - start",
    ),
    Mutant(
        "scores are given out again after a preemption",
        scheduler,
        "scores[max(0, sequence.scored - chunk.start) :]",
        "scores",
        test_scheduler.test_scores_are_given_out_once,
    ),
    # ------------------------------------------------ choices, endings
    Mutant(
        "choices keep their slots while their lead waits",
        planner,
        "for one in (sequence, *sequence.siblings):\n            if one.state is not State.GONE",
        "for one in (sequence,):\n            if one.state is not State.GONE",
    ),
    Mutant(
        "choices share a block that is still to be filled",
        kv,
        "(source.num_prompt - 1) // self.block_size",
        "-(-source.num_prompt // self.block_size)",
    ),
    Mutant(
        "choices outlive the lead that had their prompt",
        scheduler,
        "for sibling in sequence.siblings:\n            # Choices",
        "for sibling in sequence.siblings[1:]:\n            # Choices",
    ),
    Mutant(
        "an abort in flight is noticed late",
        scheduler,
        "sequence.mark = 0\n            else",
        "pass\n            else",
    ),
    Mutant(
        "an abort in flight is forgotten",
        scheduler,
        "sequence.doom = sequence.doom or (reason, error)",
        "pass",
        quick=True,
    ),
    Mutant("what is in flight ends before its step", scheduler, "if self._is_in_flight(sequence):", "if False:"),
    Mutant("an aborted sequence stays in the queue", scheduler, "self._waiting.remove(sequence)", "pass"),
    Mutant(
        "an ending is given out twice",
        scheduler,
        "if sequence.state in (State.GONE, State.HELD):\n            return",
        "if sequence.state is State.HELD:\n            return",
    ),
    Mutant(
        "tokens move to the neighbour when a row fails",
        scheduler,
        "keys = [s.key for s in rows]",
        "keys = keys[: len(rows)]",
    ),
    Mutant(
        "a row that failed goes on",
        scheduler,
        "self._end(sequence, output, now, FinishReason.ERROR, error=result.errors[sequence.slot])",
        "pass",
    ),
    Mutant(
        "rows outside a failed step end with it",
        scheduler,
        "rows = self._running.decoding if plan.decodes else []",
        "rows = self._running.decoding",
        test_scheduler.test_rows_outside_a_failed_step_go_on,
    ),
    # ------------------------------------------------ deadlines
    Mutant("deadlines are early", deadlines, "self._heap[0][0] <= now:", "self._heap[0][0] <= now + 0.01:"),
    Mutant(
        "deadlines that come in flight are missed",
        scheduler,
        '"no step was planned")\n        self._expire(now)',
        '"no step was planned")',
    ),
    Mutant(
        "deadlines that come between steps are missed",
        scheduler,
        "self._expire(now)\n        self._clocks.settle",
        "self._clocks.settle",
    ),
    Mutant(
        "the first token came in time and its deadline fires",
        scheduler,
        "if all(s.first_token is None for s in sequences) and",
        "if",
    ),
    Mutant(
        "a reused id has the deadlines of the one before",
        scheduler,
        "return sequences is not None and sequences[0].request is request",
        "return sequences is not None",
        test_precedence.test_a_reused_id_has_no_deadlines_of_the_one_before,
    ),
    # ------------------------------------------------ what is said about it
    Mutant("waits are counted twice", waits, "+= self._settled - self._since", "+= 2 * (self._settled - self._since)"),
    Mutant(
        "what passed before the last step is forgotten",
        waits,
        "seconds[REASONS.index(self.reason) if passed > 0 else 0] += passed",
        "pass",
    ),
    Mutant(
        "one who waits is counted for two reasons", scheduler, "+= num_waiting - by_reason.total()", "+= num_waiting"
    ),
    Mutant(
        "recomputed tokens are not counted",
        scheduler,
        "max(0, min(sequence.peak, chunk.start + chunk.count) - chunk.start)",
        "0",
    ),
    Mutant(
        "all that is computed counts as recomputed",
        scheduler,
        "max(0, min(sequence.peak, chunk.start + chunk.count) - chunk.start)",
        "chunk.count",
    ),
    Mutant("chunks are miscounted", scheduler, "sequence.num_chunks += 1", "sequence.num_chunks += chunk.samples"),
    Mutant(
        "cached tokens are those of the last join",
        planner,
        "if sequence.first_scheduled is not None:\n            return",
        "sequence.num_cached = num_cached\n        if sequence.first_scheduled is not None:\n            return",
    ),
    Mutant("owners in flight are miscounted", scheduler, "self._service.leave(sequence)", "pass"),
    # ------------------------------------------------ the background
    Mutant(
        "the background keeps its slots",
        background,
        "background[0 if keeps_none else MAX_HELD_BACK_SEQS :]",
        "[]",
        test_background.test_with_others_a_few_go_on_and_who_comes_has_a_slot_at_once,
    ),
    Mutant(
        "the background joins beside others as it likes",
        background,
        ">= MAX_HELD_BACK_SEQS",
        ">= 100",
        test_background.test_with_others_a_few_go_on_and_who_comes_has_a_slot_at_once,
    ),
    Mutant(
        "prompts of the background fill steps of others",
        planner,
        "MAX_HELD_BACK_TOKENS if self.holds_back",
        "100 if self.holds_back",
        test_background.test_its_prompts_are_small_pieces_of_steps_that_others_take_part_in,
    ),
    Mutant(
        "one of the background that runs is in nobody's way",
        running,
        "max(self.num_by_level, default",
        "max([level for level in self.num_by_level if level < 1 << 31], default",
        test_background.test_it_gives_way_in_the_step_after_its_prompt_too,
    ),
    Mutant(
        "the background takes slots for which it has no tokens",
        planner,
        "share = min(budget, self._share(plan, sequence, start))",
        "share = budget",
        test_background.test_it_takes_no_slots_that_it_has_no_tokens_for,
    ),
    Mutant(
        "who lacks blocks and then tokens lacks no room",
        planner,
        "bool(others_wait) and (self._lacked_room or ",
        "bool(others_wait) and (",
        test_background.test_who_lacks_blocks_has_them_although_its_tokens_are_taken_too,
    ),
    Mutant(
        "the background ages",
        ordering,
        "and sequence.order[0] < BACKGROUND_PRIORITY",
        "and True",
        test_background.test_it_does_not_age,
    ),
    Mutant(
        "the background is held back when it is alone",
        background,
        "return any(level < BACKGROUND_PRIORITY for level in running.num_by_level)",
        "return True",
        test_background.test_alone_it_may_use_everything,
    ),
    Mutant(
        "steps of the background are as long as any",
        background,
        "limits.max_num_batched_tokens // 4",
        "limits.max_num_batched_tokens",
        test_background.test_alone_it_may_use_everything,
    ),
    Mutant(
        "the background is back as soon as others have left",
        planner,
        "self.others_until = now + LINGER_S",
        "self.others_until = now",
        test_background.test_with_others_a_few_go_on_and_who_comes_has_a_slot_at_once,
    ),
]


class MutatedLoader(SourceFileLoader):
    """Loads a module from its source with one place changed."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module.__name__, str(mutant.module.__file__))
        source = inspect.getsource(mutant.module)
        assert source.count(mutant.line) == 1, f"{mutant.line!r} is there {source.count(mutant.line)} times"
        self._source = source.replace(mutant.line, mutant.instead)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, self.path)


def load_mutated(mutant: Mutant) -> ModuleType:
    loader = MutatedLoader(mutant)
    spec = spec_from_loader(mutant.module.__name__, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """Functions, methods and properties that the module defines, by their place."""
    for value in vars(module).values():
        members = vars(value).values() if inspect.isclass(value) else [value]
        for member in members:
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                yield function


def killed_by(mutant: Mutant) -> str | None:
    """What finds the defect; None if it survives."""
    if mutant.by is not None:
        try:
            mutant.by()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None
    for seed in range(NUM_SEEDS):
        try:
            run(seed, NUM_STEPS)
        except AssertionError as error:
            return f"seed {seed}: {error}"
    return None


def put_in(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {f.__qualname__: f.__code__ for f in functions(load_mutated(mutant))}
    for function in functions(mutant.module):
        monkeypatch.setattr(function, "__code__", changed[function.__qualname__])


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.quick], ids=lambda m: m.defect)
def test_a_defect_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(mutant, monkeypatch)
    assert killed_by(mutant) is not None


@pytest.mark.long
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if not m.quick], ids=lambda m: m.defect)
def test_a_defect_is_found_long(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(mutant, monkeypatch)
    found = killed_by(mutant)
    print(found)
    assert found is not None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.defect)
def test_every_defect_still_has_its_place(mutant: Mutant) -> None:
    """Or the next change of a line would leave one untried until somebody runs them all."""
    load_mutated(mutant)


def test_where_there_is_no_defect_none_is_found() -> None:
    for test in {m.by for m in MUTANTS if m.by is not None}:
        test()
