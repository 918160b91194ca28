"""The check that a supported version of a framework is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re


def require_framework(module: str, title: str, oldest: tuple[int, int], install: str) -> None:
    """Raises an error with the install command if a framework is missing or too old.

    A build without version metadata is accepted, such as a nightly build, which has another name.

    Args:
        module: The module and the distribution of the framework.
        title: Its name in messages.
        oldest: The oldest supported version.
        install: The command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"{title} is not installed: {install}", name=module)
    try:
        installed = importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return
    parts = re.match(r"(\d+)\.(\d+)", installed)
    if parts is not None and (int(parts[1]), int(parts[2])) < oldest:
        needed = ".".join(map(str, oldest))
        raise ImportError(
            f"{title} {installed} is too old: turnout needs {needed} or newer (pip install --upgrade {module})",
            name=module,
        )
