"""The CPU back end: a Llama-family model as an OpenVINO graph around its PagedAttention operation."""

from chairlift.executors.openvino.executor import OpenVINOExecutor
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.executors.openvino.rates import StepRates

__all__ = ["ExecutorOptions", "OpenVINOExecutor", "StepRates"]
