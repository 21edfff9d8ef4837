"""How long a step takes: cost models.

SeedRoofline       weights and cached tokens over one bandwidth, nothing else
smooth_roofline    a device of a table and a model's shape, with priors instead of measurements
SmoothCost         the form both have in common with what is fitted (`sim/calibrate`)
ChangingCost       that, with what changes of a step's size cost: one for each engine
NoisyCost          any of them, each step multiplied by seeded noise
WatchedCost        any of them, with a warning outside of what was measured
"""

from chairlift.sim.cost.changing import ChangeModel, ChangingCost, SizeChange, for_one_engine
from chairlift.sim.cost.hardware import DEVICES, Device, device_named
from chairlift.sim.cost.model import CostModel, DecodeLine, LineModel
from chairlift.sim.cost.noise import NoisyCost
from chairlift.sim.cost.ranges import Span, WatchedCost
from chairlift.sim.cost.roofline import Precision, num_kv_tokens, smooth_roofline
from chairlift.sim.cost.seed import LESSON, SeedRoofline
from chairlift.sim.cost.shape import ChunkSums, Regime, StepShape, shape_of
from chairlift.sim.cost.smooth import ChunkCosts, Coefficients, HostCosts, RowCosts, SmoothCost
from chairlift.sim.cost.transformer import MODELS, Transformer, transformer_named

__all__ = [
    "DEVICES",
    "LESSON",
    "MODELS",
    "ChangeModel",
    "ChangingCost",
    "ChunkCosts",
    "ChunkSums",
    "Coefficients",
    "CostModel",
    "DecodeLine",
    "Device",
    "HostCosts",
    "LineModel",
    "NoisyCost",
    "Precision",
    "Regime",
    "RowCosts",
    "SeedRoofline",
    "SizeChange",
    "SmoothCost",
    "Span",
    "StepShape",
    "Transformer",
    "WatchedCost",
    "device_named",
    "for_one_engine",
    "num_kv_tokens",
    "shape_of",
    "smooth_roofline",
    "transformer_named",
]
