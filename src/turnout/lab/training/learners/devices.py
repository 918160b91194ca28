"""The devices that torch can use on this machine."""

from __future__ import annotations

from typing import Literal

import torch

from turnout.errors import SettingError


def usable_device(name: str) -> Literal["cpu", "cuda"]:
    """Returns the type of a device; raises SettingError if torch cannot use it on this machine."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"there is no device {name!r}: use cpu, cuda, or cuda:1 for the second GPU") from error
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise SettingError(f"turnout trains on cpu and on cuda, not on {name!r}")
    if not torch.cuda.is_available():
        reason = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        raise SettingError(
            f"the device {name!r} cannot be used: {reason}. Use cpu, or a machine with a GPU and a torch with CUDA"
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(
            f"there is no device {name!r}: this machine has {torch.cuda.device_count()} GPUs, numbered from cuda:0"
        )
    return "cuda"


def device_name(name: str) -> str:
    """Returns the product name of a device, such as "NVIDIA H200", or "CPU"."""
    return torch.cuda.get_device_name(name) if usable_device(name) == "cuda" else "CPU"
