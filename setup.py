"""Builds the compiled kernel if there is a C++ compiler; otherwise turnout uses the NumPy kernel.

TURNOUT_BUILD_KERNEL=numpy builds without it, TURNOUT_BUILD_KERNEL=compiled not without it.
"""

import re
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import setup

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # setuptools does not import from the folder of this file

from release.commands import COMMANDS  # noqa: E402
from release.kernel import STABLE_ABI, has_stable_abi, kernel_extension, requested_kernel  # noqa: E402
from release.readme import long_description  # noqa: E402

project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(version,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/turnout/version.py").read_text(), flags=re.MULTILINE)

# Every build starts in an empty folder: setuptools would package whatever it finds in build/.
with TemporaryDirectory(prefix="turnout-build-") as build_folder:
    options: dict[str, dict[str, object]] = {"build": {"build_base": build_folder}}
    if has_stable_abi():
        options["bdist_wheel"] = {"py_limited_api": STABLE_ABI}
    setup(
        ext_modules=[] if requested_kernel() == "numpy" else [kernel_extension(build_folder)],
        cmdclass=COMMANDS,
        options=options,
        long_description=long_description(
            (ROOT / "README.md").read_text(encoding="utf-8"),
            repository=project["urls"].get("Repository"),
            version=version,
        ),
        long_description_content_type="text/markdown",
    )
