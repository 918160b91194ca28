#!/usr/bin/env bash
# Builds the source distribution of this commit, and from it a wheel with the compiled kernel and one without, in the
# folder OUT: release/build.sh OUT. Equal commits give equal bytes.
set -euo pipefail
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
python=$PWD/.venv-release/bin/python
export PIP_CONSTRAINT=$PWD/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/exported" "$work/unpacked"
if [ -e .git ]; then
    changed=$(git status --porcelain --untracked-files=no)
    [ -z "$changed" ] || echo "warning: not in the distributions, because not committed: $changed" >&2
    export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    git archive HEAD | tar -x -C "$work/exported"
else # an unpacked source distribution
    export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(stat -c %Y PKG-INFO)}
    tar -c --exclude='./.venv*' --exclude=./build --exclude=./dist . | tar -x -C "$work/exported"
fi
rm -f "$out"/turnout-*
"$python" -m build --sdist --outdir "$out" "$work/exported"
tar -x -f "$out"/turnout-*.tar.gz -C "$work/unpacked"
for kernel in compiled numpy; do
    TURNOUT_BUILD_KERNEL=$kernel "$python" -m build --wheel --outdir "$out" "$work"/unpacked/turnout-*
done
