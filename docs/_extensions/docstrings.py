"""Docstrings are written in Markdown, with the sections of Google's style: this extension converts them for Sphinx.

`Names` in single backticks become links where they name something public, and code elsewhere. Indented blocks, and
trees drawn with lines, become literal blocks, and tables become tables. Napoleon converts the sections afterwards.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from sphinx.application import Sphinx

from turnout.policies import SelectionPolicy

CODE = re.compile(r"(?<![`\\])`([^`]+)`(?!`)")
NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples|Note):$")
ITEM = re.compile(r" *(?:[-*]|\d+\.) ")
#: What a field of a NamedTuple is in its class.
FIELD = type(inspect.getattr_static(NamedTuple("Pair", [("first", int)]), "first"))
TREE = ("├─", "└─")


def to_rst(text: str) -> str:
    """Converts a docstring in Markdown to reStructuredText.

    >>> to_rst("Returns `clients` of `a = 1`.")
    'Returns :py:obj:`clients` of ``a = 1``.'
    """
    paragraphs = re.split(r"\n{2,}", text.strip("\n"))
    converted: list[str] = []
    in_section = False
    for paragraph in paragraphs:
        first = paragraph.split("\n")[0]
        indent = len(first) - len(first.lstrip())
        in_section = bool(SECTION.match(first)) or (in_section and indent > 0)
        if first.lstrip().startswith(">>>"):
            converted.append(paragraph)
        elif any(sign in paragraph for sign in TREE):
            converted.append("::\n\n" + re.sub("^", "    ", paragraph, flags=re.MULTILINE))
        elif first.startswith("|"):
            converted.append(_table(paragraph))
        elif indent >= 4 and not in_section:
            converted.append(" " * (indent - 4) + "::\n\n" + CODE.sub(r"\1", paragraph))
        else:
            converted.append(_separate_items(_inline(paragraph)))
    return "\n\n".join(converted)


def _table(paragraph: str) -> str:
    """Converts a table in Markdown."""
    head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in paragraph.split("\n"))
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for first, *others in (head, *body):
        lines += [f"   * - {_inline(first)}", *(f"     - {_inline(cell)}" for cell in others)]
    return "\n".join(lines)


def _inline(paragraph: str) -> str:
    """Converts code in backticks, also where it touches other text, which reStructuredText does not allow."""
    parts = CODE.split(paragraph)
    converted = _escape(parts[0])
    for code, text in zip(parts[1::2], parts[2::2], strict=True):
        before = r"\ " if re.search(r"[^\s'\"([{<\-/:]\Z", converted) else ""
        after = r"\ " if re.match(r"[^\s'\")\]}>\-/:.,;!?\\]", text) else ""
        converted += f"{before}{_code(code)}{after}{_escape(text)}"
    return converted


def _escape(text: str) -> str:
    """Escapes what has a meaning in reStructuredText only, `|x|` and `x_`, and links the pages in docs/."""
    escaped = re.sub(r"\||(?<=\w)_(?!\w)", lambda found: f"\\{found[0]}", text)
    return re.sub(r"\bdocs/([\w-]+)\.md\b", r":doc:`/\1`", escaped)


def _code(code: str) -> str:
    content = " ".join(code.split())
    return f":py:obj:`{content}`" if NAME.fullmatch(content) else f"``{content}``"


def _separate_items(paragraph: str) -> str:
    """Puts an empty line before a list that follows a line of text directly."""
    lines = paragraph.split("\n")
    for number in range(len(lines) - 1, 0, -1):
        if ITEM.match(lines[number]) and not any(ITEM.match(line) for line in lines[:number]):
            lines.insert(number, "")
    return "\n".join(lines)


def describe_attributes(text: str, annotations: Mapping[str, str]) -> str:
    r"""Replaces the section `Attributes:` by one directive for each attribute, with its type.

    >>> print(describe_attributes("Attributes:\n    size: The size\n        of it.", {"size": "int"}))
    .. py:attribute:: size
       :type: int
    <BLANKLINE>
       The size of it.
    <BLANKLINE>
    """

    def directive(found: re.Match[str]) -> str:
        kind = f"   :type: {annotations[found[1]]}\n" if found[1] in annotations else ""
        return f".. py:attribute:: {found[1]}\n{kind}\n   {' '.join(found[2].split())}\n"

    def section(found: re.Match[str]) -> str:
        return re.sub(r"^    (\w+): (.*(?:\n {5,}.*)*)", directive, found[1], flags=re.MULTILINE)

    return re.sub(r"^Attributes:\n((?:(?: .*)?\n?)*)", section, text, flags=re.MULTILINE)


def annotations_of(cls: type) -> dict[str, str]:
    """Returns the types of the attributes of a class, as they are written in its source."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for name, kind in inspect.get_annotations(base).items():
            found[name] = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    return found


def convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Converts a docstring before Napoleon reads it; adds the rule of a policy, which its module states."""
    text = "\n".join(lines)
    if what == "class" and issubclass(obj, SelectionPolicy) and obj is not SelectionPolicy:
        text = text.replace("The module docstring states", "Below is") + f"\n\n{rule_of(obj)}"
    annotations = annotations_of(obj) if inspect.isclass(obj) else {}
    lines[:] = describe_attributes(to_rst(text), annotations).split("\n")


def rule_of(policy: type[SelectionPolicy]) -> str:
    """Returns the text of a policy's module below its title."""
    documentation = inspect.cleandoc(sys.modules[policy.__module__].__doc__ or "")
    return documentation.partition("\n\n")[2]


def skip(app: Sphinx, what: str, name: str, obj: Any, *details: Any) -> bool | None:  # noqa: ARG001
    """Leaves out the fields of a NamedTuple, which the docstring of the class describes."""
    return True if isinstance(obj, FIELD) else None


def sign(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, ...]:
    """Makes a signature readable; hides that of errors, of protocols, and of classes with a class method `open`."""
    del app, name, options
    is_made_by_open = inspect.ismethod(getattr(obj, "open", None))
    if what == "exception" or (what == "class" and (is_made_by_open or getattr(obj, "_is_protocol", False))):
        return "", None
    if signature is not None and "<" in signature:
        return shortened(inspect.signature(obj)), returned
    constants = getattr(inspect.unwrap(obj.__init__ if inspect.isclass(obj) else obj), "__globals__", {})
    return tuple(None if part is None else readable(part, constants) for part in (signature, returned))


def shortened(signature: inspect.Signature) -> str:
    """Returns the names and the plain defaults of a signature with defaults that are not code, such as functions.

    >>> def example(x, y=len, z=3): ...
    >>> shortened(inspect.signature(example))
    '(x, y=..., z=3)'
    """

    def shown(parameter: inspect.Parameter) -> str:
        if parameter.default is parameter.empty:
            return parameter.name
        is_plain = isinstance(parameter.default, str | int | float | None)
        return f"{parameter.name}={parameter.default!r}" if is_plain else f"{parameter.name}=..."

    return f"({', '.join(map(shown, signature.parameters.values()))})"


def readable(signature: str, constants: Mapping[str, Any]) -> str:
    """Returns a signature with the names of type aliases, and with the values of constants that are defaults.

    >>> readable("(x: TypeAliasForwardRef('npt.ArrayLike') | None = LIMIT)", {"LIMIT": 3})
    '(x: ArrayLike | None = 3)'
    """

    def value(found: re.Match[str]) -> str:
        constant = constants.get(found[1])
        return f"= {constant!r}" if isinstance(constant, str | int | float) else found[0]

    named = re.sub(r"TypeAliasForwardRef\('(?:\w+\.)*(\w+)'\)", r"\1", signature)
    return re.sub(r"= ?([A-Z][A-Z_]+)\b", value, named)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("autodoc-process-docstring", convert, priority=100)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", sign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
