#!/usr/bin/env python3
"""How far cost models are off on what others measured, regime by regime, beside what is expected of them.

    .venv/bin/python benchmarks/cost_models.py

Kernel profiles of three pairs of GPU and model (steps that were kept from the fit), the multiplications of an H100
under several forms, Sarathi-Serve's hybrid batches and chunked prompts, and a server's profile of itself. Needs the
traces beside the checkout, in `../shared/traces`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from chairlift.sim.calibrate.calibration import calibrate
from chairlift.sim.calibrate.fit import fit
from chairlift.sim.calibrate.from_profile import steps_of_profile
from chairlift.sim.calibrate.measured import HEADINGS, error_of, errors_of, table
from chairlift.sim.cost import SmoothCost, StepShape, device_named, smooth_roofline, transformer_named
from measured_runs import PROFILES, h100_bodies, sarathi, shared_traces, vtc_steps


def main() -> int:
    traces = shared_traces()
    if traces is None:
        print("../shared/traces is not there", file=sys.stderr)
        return 0
    kernels(traces)
    bodies(traces)
    hybrid_batches(traces)
    own_profile(traces)
    return 0


def kernels(traces: Path) -> None:
    for name in PROFILES:
        model = transformer_named("qwen3-32b" if "Qwen" in name else "llama-3.1-8b")
        steps = steps_of_profile(traces / "llmservingsim" / "profile" / name, model.num_layers)
        print(f"\n{name}: kernel profile, contexts up to 4,096, held out (expected: decode 2-4 %, mixed 4-8 %)")
        print(table(dict(calibrate(steps, source="profile").errors)))
        device = device_named("rtx-4090" if "4090" in name else "rtx-pro-6000")
        print("by the data sheet, uncalibrated")
        print(table(errors_of(smooth_roofline(model, device).of_shape, steps)))


def bodies(traces: Path) -> None:
    model, device = transformer_named("llama-3.1-8b"), device_named("h100")
    steps = h100_bodies(traces, model)
    weights_s, token_s = (2.0 * model.num_body_parameters / rate for rate in (device.bandwidth, device.flops))
    prior = smooth_roofline(model, device)
    fitted = fit([step for step in steps if step.group % 4 != 3])
    forms: dict[str, Callable[[int], float]] = {
        "hard maximum": lambda tokens: max(weights_s, token_s * tokens),
        "0.8 BW, 0.7 FLOPs": lambda tokens: max(weights_s / 0.8, token_s / 0.7 * tokens),
        "smooth, priors": prior.body_s,
        "smooth, fitted": lambda tokens: fitted.of_shape(StepShape(chunks=((0, tokens, False),))),
    }
    print("\nMultiplications of Llama-3.1-8B on an H100, 1 to 2,048 tokens (expected: 24, 11, -, 3 %)")
    print(f"{'':<20}{HEADINGS}")
    for name, predict in forms.items():
        print(f"{name:<20}{error_of([(predict(s.shape.num_tokens), s.step_s) for s in steps if s.group % 4 == 3])}")


def hybrid_batches(traces: Path) -> None:
    measured = sarathi(traces)
    cost = fit(measured.batches)
    print("\nSarathi-Serve, figure 2: batches of one kind, in the fit")
    print(table(errors_of(cost.of_shape, measured.batches)))
    ratio = cost.of_shape(StepShape(3, 0, ((0, 1021, True),))) / cost.of_shape(StepShape(chunks=((0, 1024, True),)))
    print(f"table 2: 1,021 + 3 decodes over 1,024: {ratio:.3f} (measured: {measured.mixed_s / measured.whole_s:.3f})")
    print("figure 9: a prompt in chunks over the whole prompt, predicted and measured")
    for (prompt, chunk), seconds in measured.chunked_s.items():
        if chunk < 16384:
            predicted = _cut(cost, prompt, chunk) / _cut(cost, prompt, prompt)
            print(f"{prompt:>7} by {chunk:<5} {predicted:>6.2f} {seconds / measured.chunked_s[prompt, 16384]:>6.2f}")


def _cut(cost: SmoothCost, prompt: int, chunk: int) -> float:
    starts = range(0, prompt, chunk)
    return sum(cost.of_shape(StepShape(chunks=((start, min(chunk, prompt - start), False),))) for start in starts)


def own_profile(traces: Path) -> None:
    steps = vtc_steps(traces)
    prior = smooth_roofline(transformer_named("llama-2-7b"), device_named("a10g"))
    cost = fit(steps, prior=prior.coefficients)
    print("\nLlama-2-7B on an A10G, by the server's own profile: in the fit, and by the data sheet")
    print(table(errors_of(cost.of_shape, steps)))
    print(table(errors_of(prior.of_shape, steps)))
    step_s = cost.of_shape(StepShape(19, 19 * 384))
    prompt_s = cost.of_shape(StepShape(chunks=((0, 256, True),) * 19)) / 19
    rate = 19 * 256 / (256 * step_s + 19 * prompt_s) * 2
    print(f"19 rows at 256 + 256 tokens: {step_s * 1e3:.1f} ms a step, {rate:.0f} tokens/s in and out (measured: 893)")


if __name__ == "__main__":
    sys.exit(main())
