"""The long description of the package: the README, without links that lead nowhere on a package index."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#", flags=re.IGNORECASE)
NOTE = "The pages named here are part of the source distribution."


def long_description(readme: str, *, repository: str | None, version: str) -> str:
    """Returns the README for a package index, where relative links and pictures do not work.

    With the address of a repository they become absolute, and lead to the tag of this version. Without one, a link
    becomes its text and the path of the file, and a note at the end says where the files are.
    """

    def rewrite(link: re.Match[str]) -> str:
        text, target = link["text"], link["target"]
        if _ELSEWHERE.match(target):
            return link[0]
        if repository is not None:
            kind = "raw" if link["picture"] else "blob"
            return f"{link['picture']}[{text}]({repository.rstrip('/')}/{kind}/v{version}/{target})"
        path = target.partition("#")[0]
        if text == path:
            return f"`{path}`"
        return f"*{text}* (`{path}`)" if link["picture"] else f"{text} (`{path}`)"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(readme):
        parts += [_LINK.sub(rewrite, readme[end : fence.start()]), fence[0]]
        end = fence.end()
    parts.append(_LINK.sub(rewrite, readme[end:]))
    description = "".join(parts)
    return description if repository is not None else f"{description.rstrip()}\n\n{NOTE}\n"
