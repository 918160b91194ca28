"""The only test that is collected without NVFlare: it says why there are no others."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.mark.skipif(
    importlib.util.find_spec("nvflare") is None,
    reason="NVFlare is not installed (pip install 'turnout[nvflare]'): the tests of its adapter are not collected",
)
def test_the_adapter_imports_with_the_installed_nvflare() -> None:
    from turnout.adapters import nvflare

    assert set(nvflare.__all__) <= set(vars(nvflare))
