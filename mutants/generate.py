"""Generates mutants: copies of a module with one small fault each."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Every operator with what replaces it: the neighbour at the edge, and the opposite.
COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
_PAIRS = (
    *(("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("nanmin", "nanmax"), ("any", "all")),
    *(("floor", "ceil"), ("cumsum", "cumprod"), ("zeros", "ones")),
)
FUNCTIONS = {name: other for pair in _PAIRS for name, other in (pair, pair[::-1])}
#: Arguments that check something, save time, or format a text or a drawing: to change them changes no result.
NO_FAULT = frozenset(
    (
        *("strict", "copy", "stacklevel", "indent", "ensure_ascii", "daemon", "check", "compare", "repr", "slots"),
        *("frozen", "alpha", "dpi", "figsize", "fontsize", "linewidth", "rotation", "xytext", "zorder"),
    )
)
#: Calls whose arguments are for people.
FOR_PEOPLE = frozenset(("debug", "info", "warning", "error", "exception", "warn", "echo", "print"))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one fault.

    Attributes:
        module: The path of the module, relative to the package.
        where: The function or class that contains the fault, such as "Fleet.close"; "" outside of any.
        line: The number of the first changed line.
        before: The changed lines before the change, without indentation.
        after: The same lines after it.
        source: The whole module after it.
    """

    module: str
    where: str
    line: int
    before: str
    after: str
    source: bytes

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies the mutant while other lines of the module change."""
        return self.module, self.where, self.before, self.after

    def rank(self, seed: int) -> str:
        """Returns the position of the mutant in the order of a sample; it depends on no other mutant."""
        return hashlib.sha256(repr((seed, *self.key)).encode()).hexdigest()


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Returns `count` of the mutants, or all; a larger sample with the same seed contains every smaller one."""
    return sorted(mutants, key=lambda mutant: (mutant.rank(seed), mutant.line))[:count]


def mutants_of(package: Path, module: Path, keys: Collection[tuple[str, str, str, str]] | None = None) -> list[Mutant]:
    """Returns all mutants of a module that are valid Python, or those of them that have one of the keys."""
    source = module.read_bytes()
    text = _Text(source)
    found = []
    for where, start, end, new in _edits(ast.parse(source), text):
        mutated = source[:start] + new.encode() + source[end:]
        first, last = text.line_at(start), text.line_at(end)
        before, after = (_joined(part, first, last) for part in (source, mutated))
        mutant = Mutant(module.relative_to(package).as_posix(), where, first + 1, before, after, mutated)
        if (keys is None or mutant.key in keys) and _is_python(mutated):
            found.append(mutant)
    return found


def _is_python(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _joined(source: bytes, first: int, last: int) -> str:
    lines = source.decode().split("\n")[first : last + 1]
    return " ".join(line.strip() for line in lines)


class _Text:
    """The bytes of a module, and the offsets of its syntax nodes."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0, *(match.end() for match in re.finditer(b"\n", source))]

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def line_at(self, offset: int) -> int:
        return sum(start <= offset for start in self.starts) - 1

    def find(self, operator: str, left: int, right: int) -> tuple[int, int] | None:
        """Returns the range of an operator between two operands, ignoring comments."""
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[left:right])
        words = rb"\s+".join(re.escape(word.encode()) for word in operator.split())
        match = re.search(words, gap)
        return None if match is None else (left + match.start(), left + match.end())


def _edits(tree: ast.Module, text: _Text) -> Iterator[tuple[str, int, int, str]]:
    """Yields the faults of a module: the function, the range of bytes, and what takes their place."""
    for where, node in _mutable(tree, ""):
        for edit in _edits_of(node, text):
            yield where, *edit


def _mutable(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
    """Yields every node that may contain a fault, without annotations, decorators, texts and messages for people."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_for_people(child):
                continue
            yield where, child
            inside = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{where}.{child.name}".lstrip(".")
            yield from _mutable(child, inside)


def _is_for_people(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.keyword(arg=name) if name in NO_FAULT:
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in FOR_PEOPLE
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name == "__all__" or _is_type(node.value)
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
    return False


def _is_type(value: ast.expr) -> bool:
    """Returns whether an assigned value is a type, such as Literal[1, 2] or Mapping[str, int] | None."""
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.BitOr) and (_is_type(value.left) or _is_type(value.right))
    return isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id[:1].isupper()


def _edits_of(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    match node:
        case ast.Compare():
            operands = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                symbol, others = COMPARISONS[type(operator)]
                if (found := text.find(symbol, text.end(left), text.start(right))) is not None:
                    for other in others:
                        yield *found, other
        case ast.BoolOp():
            symbol, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                if (found := text.find(symbol, text.end(left), text.start(right))) is not None:
                    yield *found, other
        case ast.UnaryOp(op=ast.Not()):
            yield text.start(node), text.start(node.operand), ""
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield text.start(node), text.start(node.operand), ""
        case ast.BinOp() if type(node.op) in OPERATORS and not _is_text(node.left) and not _is_text(node.right):
            symbol, other = OPERATORS[type(node.op)]
            if (found := text.find(symbol, text.end(node.left), text.start(node.right))) is not None:
                yield *found, other
        case ast.AugAssign() if type(node.op) in OPERATORS and not _is_text(node.value):
            symbol, other = OPERATORS[type(node.op)]
            if (found := text.find(f"{symbol}=", text.end(node.target), text.start(node.value))) is not None:
                yield *found, f"{other}="
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in FUNCTIONS:
            yield text.end(node.func) - len(name), text.end(node.func), FUNCTIONS[name]
        case ast.Constant(value=bool(value)):
            yield text.start(node), text.end(node), str(not value)
        case ast.Constant(value=int(value)):
            yield text.start(node), text.end(node), str(value + 1)
        case ast.Constant(value=float(value)):
            yield text.start(node), text.end(node), repr(2 * value if value else 1.0)


def _is_text(node: ast.expr) -> bool:
    """Returns whether an operand is a string or a sequence: a difference or quotient of these is an error at once."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp | ast.Dict)
