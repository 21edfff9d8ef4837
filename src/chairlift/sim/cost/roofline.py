"""The cost of a step on a device that nobody measured: data sheets, and how far devices usually stay behind them."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.core.errors import InvalidOption
from chairlift.sim.cost.hardware import Device
from chairlift.sim.cost.smooth import ChunkCosts, Coefficients, HostCosts, RowCosts, SmoothCost
from chairlift.sim.cost.transformer import Transformer

KV_BANDWIDTH_SHARE = 0.83
ATTENTION_FLOPS_SHARE = 0.70
POWER = 2.0
MIXED_CONTEXT_FACTOR = 2.3
"""What a cached token costs with chunks in the step, relative to without: 1.9 to 3.5 on what was measured."""
TOKEN_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0, "u8": 1.0, "int4": 0.53}
"""Bytes of a number; int4 with the scales of its groups."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights and cached keys and values are kept. All arithmetic is taken to be that of bfloat16."""

    weights: str = "bfloat16"
    kv_cache: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in (self.weights, self.kv_cache):
            if name not in TOKEN_BYTES:
                raise InvalidOption(f"unknown precision {name!r}; there are {', '.join(TOKEN_BYTES)}")

    def weight_bytes(self, num_parameters: int) -> float:
        return num_parameters * TOKEN_BYTES[self.weights]

    def kv_token_bytes(self, model: Transformer) -> float:
        """Bytes that the cache keeps for one token."""
        return model.num_kv_numbers * TOKEN_BYTES[self.kv_cache]


BFLOAT16 = Precision()


def smooth_roofline(
    model: Transformer,
    device: Device,
    *,
    num_devices: int = 1,
    precision: Precision = BFLOAT16,
    host: HostCosts | None = None,
) -> SmoothCost:
    """An uncalibrated cost: expect 15 % of error, and more near saturation.

    With several devices every matrix is cut in `num_devices` parts (tensor parallelism), and each layer ends twice with
    a sum over all of them.

    Raises:
        InvalidOption: the model's heads cannot be shared by so many devices.
    """
    if num_devices < 1 or model.num_heads % num_devices:
        raise InvalidOption(f"{model.num_heads} heads cannot be shared by {num_devices} devices evenly")
    bandwidth, flops = device.bandwidth * device.bandwidth_share, device.flops * device.flops_share
    layers = model.num_layers
    # Key/value heads are copied where there are fewer of them than devices.
    kv_devices = min(num_devices, model.num_kv_heads)
    kv_s = precision.kv_token_bytes(model) / kv_devices / (device.bandwidth * KV_BANDWIDTH_SHARE)
    pair_s = model.num_pair_flops / num_devices / (device.flops * ATTENTION_FLOPS_SHARE)
    head_s = precision.weight_bytes(model.num_head_parameters) / num_devices / bandwidth
    sum_s, sum_token_s = _all_reduce(model, device, num_devices)
    step_s = layers * device.layer_s + head_s + sum_s
    row_s = layers * device.row_s
    return SmoothCost(
        Coefficients(
            weights_s=precision.weight_bytes(model.num_body_parameters) / num_devices / bandwidth,
            token_s=2.0 * model.num_body_parameters / num_devices / flops + sum_token_s,
            power=POWER,
            output_s=2.0 * model.num_head_parameters / num_devices / flops,
            decode=RowCosts(step_s, row_s, kv_s),
            mixed=RowCosts(step_s, row_s, kv_s * MIXED_CONTEXT_FACTOR),
            chunks=ChunkCosts(half_square_s=pair_s, prefix_token_s=kv_s, tile_pair_s=pair_s),
            host=HostCosts() if host is None else host,
        )
    )


def _all_reduce(model: Transformer, device: Device, num_devices: int) -> tuple[float, float]:
    """Seconds of a step's sums over devices: for the step, and for each token.

    Each token's state crosses a link about twice; half of a link's bandwidth is reached.
    """
    if num_devices == 1:
        return 0.0, 0.0
    num_sums = 2 * model.num_layers
    return num_sums * device.link_s, num_sums * model.hidden_size * 4.0 / device.link_bandwidth


def num_kv_tokens(
    model: Transformer,
    device: Device,
    *,
    num_devices: int = 1,
    precision: Precision = BFLOAT16,
    memory_share: float = 0.9,
    reserved_bytes: int = 2 << 30,
) -> int:
    """Tokens whose keys and values fit beside the weights, where engines take `memory_share` of the memory and need
    `reserved_bytes` on each device for themselves.

    Raises:
        InvalidOption: not even the weights fit.
    """
    weights = precision.weight_bytes(model.num_parameters) / num_devices
    free = device.memory_bytes * memory_share - reserved_bytes - weights
    kv_devices = min(num_devices, model.num_kv_heads)
    if free <= 0:
        raise InvalidOption(f"{model.name} does not fit into {num_devices} x {device.name}")
    return int(free / (precision.kv_token_bytes(model) / kv_devices))
