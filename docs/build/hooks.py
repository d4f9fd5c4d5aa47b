"""What the site needs besides its pages: the generated reference, links that leave the folder, search without a server."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import material
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import reference

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")
WORKER = "javascripts/iframe-worker.js"
FOREIGN = '<script src="https://unpkg.com/iframe-worker/shim"></script>'  # the offline plugin's; ours is in its place


def on_config(config: Any) -> Any:
    config.extra.setdefault("polyfills", []).append(WORKER)
    return config


def on_files(files: Files, config: Any) -> Files:
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, WORKER, content=worker_script()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A link to a file of the repository that is not in the site becomes its name, with the path as a title."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def shown(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = (folder / target.partition("#")[0]).resolve()
        if path.is_relative_to(docs) and path.suffix:
            return found.group(0)
        words = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
        return f'<span class="source" title="{path.relative_to(docs.parent)}">{words}</span>'

    return LINK.sub(shown, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    return output.replace(FOREIGN, "")


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return output.replace(FOREIGN, "")


def worker_script() -> str:
    """A browser starts no worker from a file; one from a text it does. The text is that of the installed theme."""
    folder = Path(material.__file__).parent / "templates/assets/javascripts/workers"
    (source,) = folder.glob("search.*.min.js")
    text = source.read_text(encoding="utf-8").partition("//# sourceMappingURL")[0]
    return (
        'if (location.protocol === "file:") {\n'
        f"  const text = {json.dumps(text)};\n"
        "  const Started = Worker;\n"
        "  window.Worker = class extends Started {\n"
        '    constructor() { super(URL.createObjectURL(new Blob([text], { type: "text/javascript" }))); }\n'
        "  };\n"
        "}\n"
    )
