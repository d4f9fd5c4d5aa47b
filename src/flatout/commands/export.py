"""Export a trained run: model, preprocessing, classes and card in one folder that is proven before it has its name."""

from pathlib import Path
from typing import Any

from flatout.commands.evaluate import open_for_evaluation
from flatout.config.loading import dump_config
from flatout.data.text.parallel_text import VOCABULARY_FILE
from flatout.data.text.vocabulary import read_vocabulary
from flatout.errors import ConfigError, ExportRefused
from flatout.runs import read_run
from flatout.runs.directory import write_json, write_text
from flatout.trained.card import model_card, proven_lines
from flatout.trained.evaluation import evaluate_trained
from flatout.trained.export import CARD, PROOF, export_classifier, written_whole
from flatout.trained.formats import FILES, require_packages, validated_model, write_weights
from flatout.trained.opening import BEST, TrainedRun, require_run
from flatout.training.display import Display


def export_run(
    run: Path,
    to: str,
    out: Path | None = None,
    checkpoint: str = BEST,
    data: str | None = None,
    view: str | None = None,
    licence: str | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Write the folder `out` (default RUN/export-<to>); returns what is in it and what was proven."""
    require_run(run)
    require_packages(to)
    target = out or run / f"export-{to}"
    with written_whole(target) as folder, Display(quiet) as display:
        trained = open_for_evaluation(run, checkpoint, data, view, "cpu", exact=True)
        if trained.config.spec.has_images:
            lines = _export_classifier(trained, to, folder, display)
        else:
            lines = _export_translation(trained, to, folder, run)
        summary = read_run(run).summary
        write_text(folder / CARD, model_card(trained, to, summary, lines, licence))
        files = sorted(path.name for path in folder.iterdir())
    return {"out": str(target), "format": to, "model": FILES[to], "files": files, "proven": lines}


def _export_classifier(trained: TrainedRun, to: str, folder: Path, display: Display) -> list[str]:
    display.begin("proving", 0, 0)
    proof = export_classifier(
        trained, to, folder, lambda done, total: display.advance("proving", done, total, "samples")
    )
    return proven_lines(proof)


def _export_translation(trained: TrainedRun, to: str, folder: Path, run: Path) -> list[str]:
    """Weights, vocabulary and recipe; read back into a new model that must give the same figures."""
    if to != "safetensors":
        raise ConfigError(f"--to {to} is for classifiers: a translation is searched for; use --to safetensors")
    weights = folder / FILES[to]
    write_weights(weights, validated_model(trained), {})
    write_text(folder / VOCABULARY_FILE, read_vocabulary(trained.directory.root / VOCABULARY_FILE).text)
    write_text(folder / "config.yaml", dump_config(trained.config))
    own = evaluate_trained(trained).metrics
    again = open_for_evaluation(run, str(weights), trained.config.data.path, None, "cpu", exact=True)
    found = evaluate_trained(again).metrics
    if found != own:
        raise ExportRefused(f"the exported weights give {found} where the run's give {own}; nothing was written")
    write_json(folder / PROOF, found)
    figures = ", ".join(f"{name} {value:.4g}" for name, value in own.items())
    return [f"the weights of this file give the figures of the run's own, to the last digit: {figures}"]
