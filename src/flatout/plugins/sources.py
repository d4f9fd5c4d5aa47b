"""The text of user code: the file that is named, and what it imports from beside it. Nothing is run."""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

_MOST_FILES = 500


def read_sources(path: Path, root: Path, package: str | None = None) -> dict[Path, bytes]:
    """The file, then every file under `root` that it imports, and those that they import.

    `package` leaves out what does not begin with that name: under the folder of installed packages lies much else.
    Raises OSError where `path` cannot be read.
    """
    found = {path: path.read_bytes()}
    queue = [path]
    while queue and len(found) < _MOST_FILES:
        file = queue.pop()
        for wanted in _imported(file, found[file], root, package):
            if wanted not in found and wanted.is_file():
                found[wanted] = wanted.read_bytes()
                queue.append(wanted)
    return found


def digest(sources: Mapping[Path, bytes], root: Path) -> str:
    """Of one file its own; of several that of their names and contents."""
    if len(sources) == 1:
        return hashlib.sha256(next(iter(sources.values()))).hexdigest()
    rows = sorted(f"{path.relative_to(root)} {hashlib.sha256(text).hexdigest()}" for path, text in sources.items())
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()


def _imported(file: Path, text: bytes, root: Path, package: str | None) -> Iterator[Path]:
    """Where the modules that a file imports would be, under `root`."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # loading it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _places(root, alias.name.split("."), package)
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            base = root if node.level == 0 else file.parents[node.level - 1]
            for alias in node.names if base.is_relative_to(root) else ():
                yield from _places(base, [*parts, alias.name], package if node.level == 0 else None)


def _places(base: Path, parts: list[str], package: str | None) -> Iterator[Path]:
    if package is not None and parts[:1] != [package]:
        return
    for count in range(1, len(parts) + 1):
        module = base.joinpath(*parts[:count])
        yield module.with_name(f"{module.name}.py")
        yield module / "__init__.py"
