"""Features of this machine: its devices, and the number formats that it computes fast."""

from __future__ import annotations

from pathlib import Path

import torch

from repper.basics.errors import RepperError

HALF = ("avx512_bf16", "amx_bf16")
"""Instruction sets that multiply bfloat16 numbers. With the first, training steps of `small` and
ResNet took half the time of float32 (docs/performance.md); without one, PyTorch imitates bfloat16
and is slower."""


def resolve_device(name: str) -> str:
    """The device to use: `auto` is CUDA, else MPS, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RepperError(
            f"--device must be auto, cpu, cuda, cuda:N or mps, got {name!r}"
        ) from error
    usable = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not usable.get(device.type, False):
        raise RepperError(f"--device {name} is not available on this machine: use --device auto")
    return name


def resolve_precision(name: str, device: str) -> str:
    """The number format to compute with: `auto` is bfloat16 if the hardware supports it."""
    if name != "auto":
        return name
    kind = torch.device(device).type
    if kind == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = kind == "cpu" and any(one in instruction_sets() for one in HALF)
    return "bfloat16" if fast else "float32"


def instruction_sets() -> tuple[str, ...]:
    """The names of this CPU's vector instructions, if the system reports them (Linux)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    kinds = ("avx", "amx", "asimd", "sve", "bf16")
    return tuple(flag for flag in flags.partition(":")[2].split() if flag.startswith(kinds))
