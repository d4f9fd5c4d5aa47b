"""The documentation site: what its first hour and tutorials say is typed as it stands, and the site builds and stays offline."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers.fixtures import Bucket

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/first-hour.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?```sh\n(.*?)```", re.DOTALL)
TESTED_ELSEWHERE = "flatout demo\n"  # test_demo_run.py trains it
S3_VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip


def blocks(page: Path) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [block for left_out, block in found if not left_out and block != TESTED_ELSEWHERE]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_is_typed_in_order(page: Path, tmp_path: Path, bucket: Bucket) -> None:
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160",
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_RUNTIME_DIR": str(tmp_path),
        **{variable: bucket.options[option] for option, variable in S3_VARIABLES.items()},
    }  # fmt: skip
    text = "".join(blocks(page))
    if "s3://pictures/shapes" in text:  # a bucket of the reader's
        subprocess.run(
            ["flatout", "data", "make", "shapes", "made", "--classes", "4", "--samples-per-class", "20", "--size", "32"],
            cwd=tmp_path, env=environment, check=True, capture_output=True,
        )  # fmt: skip
        for file in (tmp_path / "made").rglob("*.jpg"):
            bucket.write(f"shapes/{file.relative_to(tmp_path / 'made')}", file.read_bytes())
        text = text.replace("s3://pictures", bucket.url)
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash", "-e", "-x", "-o", "pipefail", "-c", text], cwd=work, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_commands_that_need_more_than_a_laptop_are_spelled_right() -> None:
    from typer.main import get_command

    from flatout.cli import register
    from flatout.cli.apps import app

    register()
    root = get_command(app)
    for page in PAGES:
        for left_out, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines() if left_out else ():
                words = line.split("-m flatout ")[-1].removeprefix("flatout ").split()
                if "flatout" in line and "source" not in line:
                    name, *rest = words
                    command = root.commands[name]
                    command.make_context(name, rest, resilient_parsing=False)


def test_the_site_builds_and_asks_nothing_of_anybody(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    asking = re.compile(
        r"<(?:script|img|iframe|source)[^>]+src=.?(?:https?:)?//|<link[^>]+href=.?(?:https?:)?//[^>]*stylesheet"
    )
    assert [page.name for page in pages if asking.search(page.read_text(encoding="utf-8"))] == []
    keys = (tmp_path / "site/reference/keys.html").read_text(encoding="utf-8")
    commands = (tmp_path / "site/reference/commands.html").read_text(encoding="utf-8")
    assert "stop.after_epochs" in keys.replace("<wbr>", "")
    assert "sweep" in commands
