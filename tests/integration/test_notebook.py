"""flatout in a notebook, executed by a real kernel: training is watched, results are pages."""

from pathlib import Path
from typing import Any

import pytest

from training import DEADLINE_SECONDS, write_recipe

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


def html_of(cell: Any) -> list[str]:
    return [each.data["text/html"] for each in cell.outputs if "text/html" in each.get("data", {})]


def test_a_notebook_trains_watches_and_shows(shapes: Path, tmp_path: Path) -> None:
    import nbformat

    config = write_recipe(tmp_path / "tiny.yaml", shapes)
    cells = [
        f"import flatout\nrun = flatout.train({str(config)!r})",
        "run",
        "flatout.explain(run)",
        "flatout.predict(run, {'data.workers': 2})",
        "import shutil; other = shutil.copytree(run.directory, 'runs/other'); flatout.compare(run, other)",
        "import sys; [name for name in sys.modules if name.startswith('starlette')]",
        "page = flatout.dashboard('runs'); page",
        "import urllib.request; rows = urllib.request.urlopen(page.address + 'api/runs').read().decode(); page.close(); rows",
    ]
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=DEADLINE_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    trained, shown, explained, predicted, compared, modules, framed, rows = notebook.cells
    watched = html_of(trained)
    assert len(watched) == 1  # one view, replaced as training goes on
    assert "<progress" in watched[0]
    assert "step 40 of 40" in watched[0]
    assert "polyline" in watched[0]
    assert "iframe sandbox" in html_of(shown)[0]
    assert "What holds it back" in html_of(explained)[0]
    assert "data.workers=2" in html_of(predicted)[0]
    assert "runs/other" in html_of(compared)[0]
    assert '<iframe src="http://127.0.0.1:' in html_of(framed)[0]
    assert "0/tiny" in rows.outputs[0].data["text/plain"]
    assert modules.outputs[0].data["text/plain"] == "[]"  # no server is needed for it
