"""Evaluate a run's model: figures to the last digit of its training's own validation, and what is behind them."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.commands.output_files import require_place
from flatout.commands.thumbnails import thumbnail
from flatout.config.schema import Config
from flatout.config.tasks import TASKS
from flatout.engine.parallel.joining import process_group
from flatout.engine.parallel.place import RankPlace, find_place
from flatout.errors import ConfigError, NoSpace
from flatout.reports.evaluation import evaluation_html
from flatout.reports.evaluation import evaluation_text as evaluation_text
from flatout.runs import Run, RunDirectory
from flatout.runs.directory import write_json, write_text
from flatout.tasks.translation.bleu import bleu_signature, chrf
from flatout.trained.evaluation import Evaluated, evaluate_trained
from flatout.trained.opening import BEST, TrainedRun, open_trained, read_trained_config, require_run
from flatout.trained.other_data import with_other_data
from flatout.trained.scores import SampleAnswers, calibration, confusion_matrix, per_class, top_confusions, worst_first
from flatout.trained.several_looks import LOOKS
from flatout.training.display import Display
from flatout.training.launching import launch_ranks

WORST, CONFUSIONS = 24, 50  # shown
_RANK_MODULE = "flatout.commands.one_rank"
PAGE, RESULT = "evaluation.html", "evaluation.json"


def evaluate(
    run: str | Path | Run,
    data: str | Path | None = None,
    checkpoint: str | Path = BEST,
    view: str | None = None,
    device: str | None = None,
    ranks: int = 1,
    out: str | Path | None = None,
    quiet: bool = True,
    tta: bool = False,
) -> dict[str, Any]:
    """Figures of a trained run as plain values: metrics, per class, confusion matrix, calibration, the worst samples.

    `data` is another dataset (its validation split, or all of it); `checkpoint` is best, last or a file; `view`
    another view than the run's eval_view. `ranks` processes share the batches, as they do in training; under torchrun
    its ranks do, and all but rank 0 return an empty dict. `out` is a page (.html) to write. `tta` adds figures of
    test-time augmentation, under `several_looks`.
    """
    folder = run.directory if isinstance(run, Run) else Path(run)
    page = None if out is None else Path(out)
    require_run(folder)
    if page is not None:
        require_place(page)
    wanted = {
        "run": str(folder),
        "data": None if data is None else str(data),
        "checkpoint": str(checkpoint),
        "view": view,
        "device": device,
        "tta": tta,
    }
    place = find_place(os.environ)
    launches = place is None and ranks > 1
    result = _launched(wanted, ranks, quiet) if launches else _evaluate_here(wanted, place, quiet)
    if page is not None and result:
        try:
            write_text(page, evaluation_html(result))
        except OSError as error:
            raise NoSpace(f"cannot write {page}: {error.strerror}; choose another --out FILE") from None
        result["page"] = str(page)
    return result


def _launched(wanted: dict[str, Any], ranks: int, quiet: bool) -> dict[str, Any]:
    config = _parallel(read_trained_config(Path(wanted["run"]), device=wanted["device"]), ranks, 1)
    with tempfile.TemporaryDirectory(prefix="flatout-evaluate-") as name:
        answer = Path(name) / RESULT
        options = {"work": "evaluate", "wanted": wanted, "answer": str(answer), "quiet": quiet}
        launch_ranks(_RANK_MODULE, config, ranks, RunDirectory(Path(name)), options)  # the run itself is only read
        values: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return values


def evaluate_as_rank(wanted: dict[str, Any], answer: str, quiet: bool) -> None:
    """One of the ranks that `evaluate` started; rank 0 leaves the result where the launcher finds it."""
    result = _evaluate_here(wanted, find_place(os.environ), quiet)
    if result:
        write_json(Path(answer), result)


def _parallel(config: Config, devices: int, nodes: int) -> Config:
    several = config.parallel.model_copy(update={"mode": "ddp", "devices": devices, "nodes": nodes})
    return config.model_copy(update={"parallel": several})


def _evaluate_here(wanted: Mapping[str, Any], place: RankPlace | None, quiet: bool) -> dict[str, Any]:
    """In this process: alone, or as one of several ranks."""
    if place is None or place.world_size == 1:
        return _evaluated(wanted, quiet, None)
    config = read_trained_config(Path(wanted["run"]), device=wanted["device"])
    spread = _parallel(config, place.local_world_size, place.world_size // place.local_world_size)
    with process_group(spread, place) as ranks:
        return _evaluated(wanted, quiet or ranks.rank != 0, ranks)


def _evaluated(wanted: Mapping[str, Any], quiet: bool, ranks: Any) -> dict[str, Any]:
    rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)

    def opened() -> TrainedRun:
        return open_for_evaluation(
            Path(wanted["run"]), wanted["checkpoint"], wanted["data"], wanted["view"], wanted["device"], (rank, count)
        )

    trained = opened() if ranks is None else ranks.together(opened)
    total = _total(trained)
    with Display(quiet) as display:
        display.begin("evaluating", 0, total)
        found = evaluate_trained(
            trained,
            ranks,
            lambda done: display.advance("evaluating", min(total, done * count), total, "samples"),
            tuple(LOOKS) if wanted["tta"] else (),
        )
    return described(trained, found, wanted, count) if rank == 0 else {}


def open_for_evaluation(
    run: Path,
    checkpoint: str = BEST,
    data: str | None = None,
    view: str | None = None,
    device: str | None = None,
    place: tuple[int, int] = (0, 1),
    exact: bool = False,
) -> TrainedRun:
    """A run's model with the samples it is to be evaluated on."""
    config = read_trained_config(run, device=device)
    changes: dict[str, Any] = {}
    if view is not None:
        if not config.spec.has_images:
            raise ConfigError(f"--view is {view}, but {run} was trained for {config.task}: its samples are no pictures")
        changes["data.eval_view"] = view
    by_name = data is not None and config.task in TASKS and config.spec.has_images
    if data is not None and not by_name:
        changes["data.path"] = data
    trained = open_trained(run, checkpoint, changes, device, not by_name, exact, place)
    return with_other_data(trained, str(data), place) if by_name else trained


def _total(trained: TrainedRun) -> int:
    val = None if trained.opened is None else trained.opened.dataset.val
    return 0 if val is None else len(val)


def described(trained: TrainedRun, found: Evaluated, wanted: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The result as plain values."""
    weights, opened = trained.weights, trained.opened
    assert opened is not None
    own = wanted["data"] is None and wanted["view"] is None
    said = weights.metrics if own else None
    result: dict[str, Any] = {
        "run": str(trained.directory.root),
        "task": trained.config.task,
        "checkpoint": str(weights.path),
        "step": weights.step,
        "data": trained.config.data.path,
        "view": trained.config.data.eval_view if trained.config.spec.has_images else None,
        "samples": found.samples,
        "left_out": [vars(each) for each in found.failures.values()],
        "metrics": found.metrics,
        "several_looks": found.several_looks,
        "training_said": said,
        "as_training_said": None if said is None else {name: found.metrics.get(name) for name in said} == dict(said),
        "seconds": found.seconds,
        "samples_per_second": found.samples / found.seconds if found.seconds else None,
        "ranks": ranks,
        "averaged_weights": trained.learner.ema is not None and trained.learner.ema.updates > 0,
    }
    if found.answers is not None:
        result |= _by_class(trained, found.answers)
    if found.texts is not None:
        score, signature = chrf(*zip(*found.texts, strict=True))
        result["metrics"] = {**found.metrics, "chrf": score}
        result |= {"bleu_signature": bleu_signature(), "chrf_signature": signature}
    return result


def _by_class(trained: TrainedRun, answers: SampleAnswers) -> dict[str, Any]:
    names, matrix = trained.classes, confusion_matrix(answers, len(trained.classes))
    return {
        "classes": per_class(matrix, names),
        "confusion_matrix": matrix.tolist(),
        "confusions": top_confusions(matrix, names, CONFUSIONS),
        "calibration": calibration(answers),
        "worst": [_worst(trained, answers, at) for at in worst_first(answers, WORST).tolist()],
    }


def _worst(trained: TrainedRun, answers: SampleAnswers, at: int) -> dict[str, Any]:
    assert trained.opened is not None
    split: Any = trained.opened.dataset.val
    sample = int(answers.ids[at])
    return {
        "name": split.name(sample),
        "class": trained.classes[int(answers.labels[at])],
        "probability": float(answers.of_label[at]),
        "predicted": trained.classes[int(answers.predicted[at])],
        "predicted_probability": float(answers.confidence[at]),
        "thumbnail": thumbnail(split, sample),
    }
