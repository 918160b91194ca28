#!/usr/bin/env bash
# Installs both wheels of the folder DIST with a Python in a new environment, one after the other, and uses them:
# release/use.sh DIST python3.12. Prints a digest of the selections with each kernel.
set -euo pipefail
dist=$(cd "$1" && pwd)
sources=$(cd "$(dirname "$0")/.." && pwd)
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV TURNOUT_KERNEL TURNOUT_BUILD_KERNEL PIP_CONSTRAINT
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$2" -m venv environment
export PATH=$work/environment/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
for kernel in compiled numpy; do
    if [ $kernel = compiled ]; then
        pip install --quiet "$(echo "$dist"/turnout-*-abi3-*.whl)[plots]"
    else
        pip install --quiet --force-reinstall --no-deps "$dist"/turnout-*-none-any.whl
    fi
    pip check > /dev/null
    turnout --version 2> /dev/null | grep -q "($kernel kernel)"
    turnout demo --seeds 2 --rounds 60 --report $kernel.html > /dev/null
    test -s $kernel.html
    python "$sources/examples/quickstart.py" > /dev/null
    python "$sources/release/self_check.py" $kernel
done
