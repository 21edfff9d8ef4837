"""Devices, as their makers describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from chairlift.core.errors import InvalidOption

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one CPU with all its cores.

    `flops` are dense bfloat16 operations per second, `bandwidth` bytes per second of its memory, `link_bandwidth`
    bytes per second and direction to its neighbours, `link_s` how long the shortest message to all of them takes, and
    `layer_s` what the attention of one layer takes however little there is to do.
    """

    name: str
    flops: float
    bandwidth: float
    memory_bytes: int
    link_bandwidth: float
    link_s: float = 5e-6
    layer_s: float = 11e-6
    row_s: float = 0.19e-6
    """For one decode row more, in one layer."""
    bandwidth_share: float = 0.72
    """How much of its bandwidth it reaches while it reads weights."""
    flops_share: float = 0.80


def _gpu(name: str, tflops: float, gb_s: float, gib: int, link_gb_s: float, link_s: float = 5e-6) -> Device:
    return Device(name, tflops * 1e12, gb_s * 1e9, gib * GIB, link_gb_s * 1e9, link_s)


def _cpu(name: str, tflops: float, gb_s: float, gib: int) -> Device:
    """A CPU launches nothing: a layer's loop over rows costs next to nothing by itself."""
    return Device(name, tflops * 1e12, gb_s * 1e9, gib * GIB, 50e9, 2e-6, layer_s=5e-6, row_s=0.1e-6)


_PCIE_S = 15e-6

_ALL = (
    _gpu("a100-80gb", 312, 2039, 80, 300),
    _gpu("a100-40gb", 312, 1555, 40, 300),
    _gpu("h100", 989, 3350, 80, 450),
    _gpu("h200", 989, 4800, 141, 450),
    _gpu("b200", 2250, 7700, 180, 900),
    _gpu("l40s", 362, 864, 45, 32, _PCIE_S),
    _gpu("l4", 121, 300, 24, 32, _PCIE_S),
    _gpu("rtx-pro-6000", 468, 1792, 96, 64, _PCIE_S),
    # It runs at higher clocks than its data sheet reckons with.
    replace(_gpu("rtx-4090", 165, 1008, 24, 32, _PCIE_S), bandwidth_share=0.85, flops_share=0.92),
    _gpu("a40", 150, 696, 48, 32, _PCIE_S),
    _gpu("a10g", 70, 600, 24, 32, _PCIE_S),
    # Cores x sustained clock x operations of one cycle, and all memory channels filled.
    _cpu("xeon-8480", 56 * 2.0e9 * 1024 / 1e12, 307, 512),  # AMX, eight channels of DDR5-4800
    _cpu("xeon-8380", 40 * 2.3e9 * 64 / 1e12, 205, 512),  # AVX-512 in float32: no bfloat16 units; DDR4-3200
    _cpu("epyc-9654", 96 * 2.4e9 * 128 / 1e12, 461, 768),  # AVX-512 BF16, twelve channels of DDR5-4800
    _cpu("desktop-8-core", 8 * 4.5e9 * 64 / 1e12, 80, 64),  # AVX-512 in float32, two channels of DDR5
)
DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _ALL})
"""By name. Source: the makers' data sheets; GPUs as collected by AIConfigurator, except for the last four of them."""


def device_named(name: str) -> Device:
    """A device of the table, whatever the case.

    Raises:
        InvalidOption: there is none of that name.
    """
    device = DEVICES.get(name.lower())
    if device is None:
        raise InvalidOption(f"no such device: {name!r}; there are {', '.join(DEVICES)}")
    return device
