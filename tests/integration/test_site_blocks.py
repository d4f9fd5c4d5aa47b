"""Every code block of every page: typed as it stands, or spelled right with a reason for not being run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.config.loading import load_config
from flatout.config.suite import load_suite
from flatout.cost.catalogue import read_price_file
from training import installed_command, make_dataset, write_recipe

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
PAGES = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
HAVE_A_TEST = {
    "docs/first-hour.md": "test_site.py",
    **{f"docs/tutorials/{path.name}": "test_site.py" for path in (ROOT / "docs/tutorials").glob("*.md")},
    "docs/data-layouts.md": "test_layouts_page.py",
    "docs/checkpoints.md": "test_checkpoint_page.py",
    "docs/extend.md": "test_extend.py",
    "docs/use-the-loader.md": "test_use_the_loader.py",
    "docs/pack-format.md": "../unit/data/test_pack.py",
}
KINDS = ("sh", "python", "yaml", "text")
TYPED = ("docs/after-training.md", "docs/explain.md", "docs/plan.md", "docs/record.md", "docs/reports.md")
SCRIPT = """
import sys, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(64, 4)), batch_size=8)
for epoch in range(int(sys.argv[2])):
    for (batch,) in loader:
        loss = model(batch).square().mean() + model.weight.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
BEFORE = {
    "docs/after-training.md": "import numpy, PIL.Image; pil_image = PIL.Image.new('RGB', (16, 16)); "
    "uint8_array = numpy.zeros((16, 16, 3), numpy.uint8); pil_image.save('a.jpg')\n",
    "docs/record.md": """import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, augment, evaluate = [torch.zeros(8, 4)] * 6, lambda batch: batch + 1, lambda model: 0.5
def train_step(model, batch):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss
""",
}


def blocks(page: str, kind: str) -> Iterator[tuple[str, str]]:
    """Text of every block of a kind, and why it is not run (empty where it is)."""
    for found in BLOCK.finditer(PAGES[page].read_text(encoding="utf-8")):
        if found["kind"] == kind:
            yield found["text"], found["reason"] or ""


def test_every_block_says_what_it_is_and_has_a_test() -> None:
    for page, path in PAGES.items():
        kinds = {found["kind"] for found in BLOCK.finditer(path.read_text(encoding="utf-8"))}
        if page not in HAVE_A_TEST:
            assert kinds <= set(KINDS), page
            assert "sh" not in kinds or page in TYPED or all(reason for _, reason in blocks(page, "sh")), page
            assert "python" not in kinds or page in BEFORE, page
        elif kinds:
            test = (Path(__file__).parent / HAVE_A_TEST[page]).read_text(encoding="utf-8")
            assert Path(page).name in test or Path(page).parent.name in test or "loader_examples" in test, page


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `flatout` of every line that has it."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for at, word in enumerate(words):
            if word == "flatout" and words[at - 1 : at] != ["pip"]:
                ends = [n for n, each in enumerate(words) if n > at and each in ("|", "||", "&&", "&", ";", ">")]
                yield words[at + 1 : min(ends, default=len(words))]
                break


def indented(page: str) -> list[str]:
    """Commands that stand in a line of their own, without a fence."""
    text = re.sub(r"\\\n\s+", " ", PAGES[page].read_text(encoding="utf-8"))
    return re.findall(r"(?m)^    (flatout .*)$", text)


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, "sh")) or indented(page)])
def test_every_command_is_spelled_right(page: str) -> None:
    from typer.main import get_command

    from flatout.cli import register
    from flatout.cli.apps import app

    register()
    for text in (*(text for text, _ in blocks(page, "sh")), *indented(page)):
        for words in commands(text):
            command: Any = get_command(app)
            name = "flatout"
            while hasattr(command, "commands") and words and words[0] in command.commands:
                name, *words = words
                command = command.commands[name]
            command.make_context(name, list(words), resilient_parsing=False)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HAVE_A_TEST and any(blocks(page, "yaml"))])
def test_every_recipe_is_one(page: str, tmp_path: Path) -> None:
    for text, _ in blocks(page, "yaml"):
        values = yaml.safe_load(text)
        path = tmp_path / "suites" / "file.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if "dated" in values:
            assert read_price_file(path)
        elif "variants" in values:
            shutil.copy(ROOT / "recipes" / Path(values["recipe"]).name, tmp_path)
            assert load_suite(path, {}).experiments
        else:
            load_config(values)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: pictures, a recipe, runs, a script."""
    work = tmp_path_factory.mktemp("workshop")
    make_dataset(work / "photos")
    write_recipe(work / "my.yaml", work / "photos", name="mine")
    finished = installed_command("train", "my.yaml", cwd=work)
    assert finished.code == 0, finished.err
    shutil.copytree(work / "runs/mine", work / "runs/demo", symlinks=True)
    (work / "train.py").write_text(SCRIPT)
    return work


@pytest.mark.parametrize("page", sorted({*TYPED, *BEFORE}))
def test_what_a_page_says_is_typed(page: str, workshop: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(workshop, work, symlinks=True)
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    text = "".join(text for text, reason in blocks(page, "sh") if not reason)
    typed = [["bash", "-e", "-x", "-o", "pipefail", "-c", text]]
    if page in BEFORE:
        shutil.rmtree(work / "runs/mine") if "recording" in PAGES[page].read_text() else None
        typed += [[sys.executable, "-c", BEFORE[page] + code] for code, _ in blocks(page, "python")]
    for words in typed:
        done = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
