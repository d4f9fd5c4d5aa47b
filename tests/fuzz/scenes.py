"""What is damaged and what reads it: run directories of every kind, recipes, logs, datasets in every layout, and for each
the commands that are given them. `make_material` makes all of it once, by the installed commands."""

import asyncio
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.main import get_command

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from flatout.cli.main import app  # noqa: E402
from flatout.engine import checkpoint  # noqa: E402
from flatout.service.client.opening import _remembered  # noqa: E402

Act = Callable[[], object]
SKIPPED = {"lock", "log.txt", "report.html", "trace.json"}  # written or shown as they are, never parsed
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 2)
for epoch in range(2):
    for x, y in DataLoader(data, 4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@dataclass(frozen=True)
class Scene:
    """Files under `folder` of the material are damaged, one at a time; each command of `acts` reads them."""

    folder: str
    acts: dict[str, Act]
    only: str = "*"
    """Pattern of the files that may be damaged."""
    weight: float = 1.0
    goes_on: bool = False
    """Its files are new, as those of a run that goes on."""
    may_fail: bool = False
    """Exit code 1 is an answer, too: too many samples of a dataset cannot be used, or an experiment of a suite failed."""

    def files(self, material: Path) -> list[str]:
        """Relative to the material, those that are never parsed left out."""
        home = material / self.folder
        found = [path for path in home.rglob(self.only) if path.is_file()]
        return sorted(str(path.relative_to(material)) for path in found if path.name not in SKIPPED)


def cli(*words: str) -> Act:
    return lambda: _command()(list(words), standalone_mode=False)


@functools.cache
def _command() -> Any:
    """What `app` makes for each call anew, which takes longer than most commands."""
    return get_command(app)


def _of_run(run: str) -> dict[str, Act]:
    """What reads the files of any run directory, trained or recorded."""
    return {
        "runs": cli("runs", "."),
        "runs --json": cli("runs", ".", "--json"),
        "report": cli("report", run),
        "report --markdown": cli("report", run, "--markdown"),
        "report --trace": cli("report", run, "--trace"),
        "explain": cli("explain", run),
        "explain --fix": cli("explain", run, "--fix", "fixed.yaml"),
        "compare": cli("compare", run, "other"),
        "predict": cli("predict", run, "--if", "data.workers=2"),
        "predict --score": cli("predict", ".", "--score"),
        "dashboard": lambda: look_at_dashboard(run),
    }


def _of_model(run: str) -> dict[str, Act]:
    """What reads the checkpoints of a trained run, too."""
    return {
        "evaluate": cli("evaluate", run, "--json"),
        "export": cli("export", run, "--to", "safetensors", "--out", "exported"),
        "train": cli("train", f"{run}.yaml", "--run", run, "--json"),
    }


def _checkpoints(folder: Path) -> dict[str, Act]:
    return {
        "checkpoint list": lambda: checkpoint.list_saved(folder),
        "checkpoint newest": lambda: checkpoint.load_newest(folder),
        "checkpoint weights": lambda: checkpoint.load_tensors(sorted(folder.glob("step-*"))[-1]),
    }


def _of_file(name: str) -> dict[str, Act]:
    """What reads an input that is one file."""
    from flatout.config.suite import load_suite
    from flatout.config.sweep import load_sweep

    path, new = f"inputs/{name}", f"new.{name.rpartition('.')[2]}"
    planned = ("plan", path, "--gpu", "T4", "--samples", "99", "--sample-bytes", "9kB", "--runs", "new")
    acts: dict[str, dict[str, Act]] = {
        "recipe.yaml": {"config show": cli("config", "show", path), "fit": cli("fit", path), "plan": cli(*planned)},
        "suite.yaml": {"suite (read)": lambda: load_suite(Path(path), {})},
        "sweep.yaml": {"sweep (read)": lambda: load_sweep(Path(path), {}, [])},
        "simulation.yaml": {"simulate": cli("simulate", path)},
        "prices.yaml": {"prices show": cli("prices", "show", "--file", path)},
        "catalogue.csv": {"prices import": cli("prices", "import", path, "--out", new)},
    }
    return acts.get(name) or {f"import {name}": cli("import", path, "--run", "new")}


def scenes(material: Path) -> list[Scene]:
    """Those whose files are in the material."""
    trained = {**_of_run("tiny"), **_of_model("tiny"), "config show": cli("config", "show", "tiny/config.yaml")}
    trained |= {
        "fit": cli("fit", "tiny/config.yaml"),
        "classify": cli("classify", "tiny", "pictures"),
    }
    planned = ("plan", "tiny.yaml", "--gpu", "T4", "--runs", "new", "--measured", "measured")
    text = {
        **_of_model("text"),
        "translate": cli("translate", "text", "line.txt"),
        "report text": cli("report", "text"),
    }
    cached = {
        "fit": cli("fit", "tiny.yaml"),
        "plan": cli(*planned[:-2]),
        "train text": cli("train", "text.yaml", "--set=train.max_steps=2", "--json"),
    }
    shared = "sweep/01-lr=0.05"
    swept = {name: act for name, act in _of_run(shared).items() if not name.startswith("runs")}
    swept |= {"sweep": cli("sweep", "sweep.yaml", "--runs", "sweep"), "runs sweep": cli("runs", "sweep")}
    found = [
        Scene("tiny", trained, weight=6),
        Scene("tiny/checkpoints", {**_checkpoints(Path("tiny/checkpoints")), **_of_model("tiny")}),
        Scene("live", _of_run("live"), weight=2, goes_on=True),
        Scene("measured", {"plan --measured": cli(*planned)}, weight=0.5),
        Scene("half", {"train (resume)": cli("train", "tiny.yaml", "--run", "half", "--json")}, weight=0.5),
        Scene("text", text),
        Scene("recorded", _of_run("recorded"), weight=2),
        Scene("ranks", _of_run("ranks")),
        Scene("probed", {"predict probed": cli("predict", "probed", "--if", "data.workers=2")}, weight=0.5),
        Scene("sweep", swept),
        Scene(
            "suite",
            {"suite": cli("suite", "suite.yaml", "--runs", "suite"), "dashboard": look_at_dashboard},
            weight=0.1,
            may_fail=True,
        ),
        Scene("orders", {"shared order": lambda: _remembered(Path("orders/shared_order.json"))}, weight=0.1),
        Scene("plans", {"plan --score": cli("plan", "--score", "--runs", "."), "dashboard": look_at_dashboard}),
        Scene("pictures", {"classify": cli("classify", "tiny", "pictures")}),
        Scene("cache", {**cached, "batches unpacked": _batches(material, "unpacked")}, may_fail=True),
    ]
    found += [Scene("inputs", _of_file(name), name, 0.3) for name in INPUTS]
    found += [Scene(f"data/{name}", _of_data(material, name), weight=0.5, may_fail=True) for name in LAYOUTS]
    return [scene for scene in found if scene.files(material)]


INPUTS = (
    "recipe.yaml", "suite.yaml", "sweep.yaml", "simulation.yaml", "prices.yaml", "catalogue.csv", "metrics.csv",
    "trainer_state.json",
)  # fmt: skip
LAYOUTS = ("folder", "pack", "decoded", "tar", "zip", "table", "jsonl", "webdataset", "parquet", "mds", "imagenet")


def _of_data(material: Path, name: str) -> dict[str, Act]:
    path = _data_path(material, name)
    return {
        f"data audit {name}": cli("data", "audit", path, "--json"),
        f"init {name}": cli("init", path, "--out", "new.yaml"),
        f"batches {name}": _batches(material, name),
    }


def _data_path(material: Path, name: str) -> str:
    """An archive by its own name, anything else by that of its folder."""
    archives = list((material / "data" / name).glob("whole.*"))
    return f"data/{name}/{archives[0].name}" if archives else f"data/{name}"


def _batches(material: Path, name: str) -> Act:
    path = _data_path(material, name)

    def read() -> None:
        import flatout

        for _ in flatout.open_batches(path, view="train-64", batch_size=8, seed=0, workers=0).epoch(0):
            pass

    return read


# The dashboard, asked without a network


def look_at_dashboard(run: str = "tiny") -> None:
    """Every page, and three pushes of every stream."""
    from flatout.commands import dashboard_run
    from flatout.commands.dashboard import Board
    from flatout.web import app, guard, streams

    async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def at_once(self: Any, most_seconds: float) -> None:
        pass

    places = [(dashboard_run, "_TICK_SECONDS", 0.0), (streams.Streams, "wait_for_end", at_once)]
    places += [(module, "run_in_threadpool", inline) for module in (app, streams)]
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(_replaced(*place))
        board, key = Board([Path()]), f"0/{run}"
        pages = app.make_app(board, guard.Guard("token", ("localhost",), True, "cookie"), streams.Streams())
        for address in (
            "/", f"/run/{key}", "/api/runs?column=train.lr", "/api/keys", f"/events/run/{key}", "/events/runs",
            f"/api/what-if/{key}?data.workers=2", f"/compare?run={key}&run=0/other", "/plans", "/suites",
            f"/events/compare?run={key}&run=0/other", "/events/run/0/nobody", "/events/plans", "/events/suites",
        ):  # fmt: skip
            status = asyncio.run(_ask(pages, address))
            assert status < 500, f"{address}: {status}"
        dashboard_run.WatchedRuns(board).small_view(key)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


async def _ask(pages: Any, address: str) -> int:
    """A GET by the protocol that servers speak with applications; a stream is left after three pieces."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(b"host", b"localhost")], "scheme": "http", "server": ("localhost", 80), "root_path": "",
        "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.4"},
    }  # fmt: skip
    answered: list[Any] = []

    async def receive() -> dict[str, Any]:
        gone = sum(each["type"] == "http.response.body" for each in answered) >= 3
        return {"type": "http.disconnect"} if gone else {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answered.append(message)

    await pages(scope, receive, send)
    return int(next(each["status"] for each in answered if each["type"] == "http.response.start"))


# The material


def make_material(folder: Path) -> Path:
    """Everything that scenes damage, and what the commands need beside it."""
    from training import make_dataset, make_sentences, write_recipe

    samples = make_dataset(folder.parent / "samples")
    (samples / "train/broken.jpg").write_bytes(b"")
    folder.mkdir(parents=True)
    min(samples.glob("train/*/*")).write_bytes(b"")  # is in the quarantine of every run
    write_recipe(folder / "tiny.yaml", samples, cost__instance="g5.xlarge")
    write_recipe(folder / "text.yaml", make_sentences(folder.parent / "sentences"))
    (folder / "line.txt").write_text("ba de go\n")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "sweep.yaml").write_text("recipe: tiny.yaml\nover: {train.lr: [0.05, 0.1]}\nset: {train.epochs: 2}\n")
    (folder / "suite.yaml").write_text("recipe: tiny.yaml\nvariants: [{name: one, set: {train.epochs: 1}}]\n")
    for words in (
        "train tiny.yaml --run tiny", "train tiny.yaml --run other", "train tiny.yaml --run half --set=stop.after_epochs=1",
        "train tiny.yaml --run ranks --set=parallel.mode=ddp --set=parallel.devices=2",
        "probe tiny.yaml --seconds 0.5 --out probed",
        "train text.yaml --run text", "sweep sweep.yaml --runs sweep", "suite suite.yaml --runs suite",
        "plan tiny.yaml --gpu T4 --runs .", f"record --run recorded -- {sys.executable} script.py",
        *(" ".join(words) for run in ("tiny", "recorded") for words in finishing(run)),
    ):  # fmt: skip
        _flatout(folder, words)
    (folder / "orders").mkdir()
    (folder / "orders/shared_order.json").write_text("[0, 7]")
    make_inputs(folder, samples)
    make_packs(folder)
    make_copies(folder)
    return folder


def make_copies(folder: Path) -> None:
    """Of the trained run: as on a card of a plan, and as one that goes on on another machine."""
    for name, changes in COPIES.items():
        run = shutil.copytree(folder / "tiny", folder / name, ignore=shutil.ignore_patterns("checkpoints"))
        for file, values in changes.items():
            (run / file).write_text(json.dumps({**json.loads((run / file).read_text()), **values}))


COPIES: dict[str, dict[str, dict[str, Any]]] = {
    "measured": {"summary.json": {"device": {"name": "Tesla T4", "count": 1}}},
    "live": {"summary.json": {"status": "running"}, "env.json": {"host": "another machine"}},
}


def finishing(run: str) -> list[list[str]]:
    """Commands after which a run directory has every file it can have."""
    return [["explain", run], ["predict", run, "--if", "data.workers=2"], ["report", run]]


def _flatout(folder: Path, words: str) -> None:
    command = [str(Path(sys.executable).with_name("flatout")), *words.split()]
    kept = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=kept)


def make_inputs(folder: Path, samples: Path) -> None:
    """Single files that commands take, and datasets in every layout."""
    shutil.copytree(samples / "val", folder / "pictures")
    inputs = folder / "inputs"
    inputs.mkdir()
    shutil.copy(folder / "tiny.yaml", inputs / "recipe.yaml")
    for name in ("suite.yaml", "sweep.yaml"):
        (inputs / name).write_text((folder / name).read_text().replace("recipe: tiny", "recipe: recipe"))
    (inputs / "simulation.yaml").write_text(
        "jobs: [{count: 2, step_seconds: 0.1, epochs: 2}]\nproducers: {hands: 2, make_seconds: 0.05}\n"
        "batches_per_epoch: 20\nbatch_size: 8\nbatch_bytes: 1MB\ncache_bytes: 100MB\n"
    )
    shutil.copy(ROOT / "src/flatout/cost/prices.yaml", inputs / "prices.yaml")
    (inputs / "catalogue.csv").write_text(
        "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
        "g5.xlarge,4,16,A10G,1,{'Gpus': []},1.006,0.4,us-east-1,us-east-1a\nm5.large,2,8,,,,0.1,0.05,us-east-1,us-east-1b\n"
    )
    rows = "".join(f"{epoch},{epoch * 20},{1 / (epoch + 1)},{epoch / 10}\n" for epoch in range(5))
    (inputs / "metrics.csv").write_text(f"epoch,step,train_loss,val_acc\n{rows}")
    history = [{"epoch": n / 2, "step": n * 10, "loss": 1 / (n + 1), "learning_rate": 0.1} for n in range(6)]
    (inputs / "trainer_state.json").write_text(json.dumps({"global_step": 50, "epoch": 2.5, "log_history": history}))
    _make_layouts(folder)


def _make_layouts(folder: Path) -> None:
    import layout_files as made

    files = made.pictures(train=4, val=2)
    data = folder / "data"
    made.write_files(data / "folder", files)
    made.write_files(data / "tar", {"whole.tar": made.tar_of(files)})
    made.write_zip(data / "zip/whole.zip", files)
    made.write_files(data / "table", {**files, "labels.csv": made.table_of(files)})
    lines = {f"{split}/metadata.jsonl": made.jsonl_of(files, split) for split in ("train", "val")}
    made.write_files(data / "jsonl", {**files, **lines})
    made.write_files(data / "webdataset", made.webdataset_of(files))
    for split in ("train", "val"):
        made.write_parquet(data / f"parquet/data/{split}-00000-of-00001.parquet", files, split)
    made.write_files(data / "mds", made.mds_of(files))
    made.write_files(data / "imagenet", made.imagenet_downloads(made.imagenet_files(), nested=False, truth="devkit"))


def make_packs(folder: Path) -> None:
    """And parquet files that stay as they are, as what is kept of them when they are read is used for no others."""
    shutil.copytree(folder / "data/parquet", folder / "data/unpacked")
    _flatout(folder, "data pack data/folder data/pack")
    _flatout(folder, "data pack data/folder data/decoded --mode decoded")
