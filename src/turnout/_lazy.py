"""Lazy exports of a package: a name is imported from its module on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package (PEP 562).

    The package lists its public names once, for type checkers, in a block `if TYPE_CHECKING:` as
    `from module import Name as Name`; `from package import *` takes over all names of another such package. The block
    is read from the source, which every distribution contains, when the first name is looked up; `__all__` has the same
    names.
    """

    @cache
    def homes() -> dict[str, str]:
        import ast  # `turnout.client` looks up no name, and starts faster without

        loader: Any = sys.modules[package].__loader__
        blocks = [node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        public: dict[str, str] = {}
        for node in imports:
            module, names = str(node.module), [alias.name for alias in node.names]
            public |= dict.fromkeys(import_module(module).__all__ if names == ["*"] else names, module)
        return {name: public[name] for name in sorted(public, key=lambda name: (not name.isupper(), name))}

    def get(name: str) -> Any:
        if name == "__all__":
            value: Any = list(homes())
        elif name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes()})
