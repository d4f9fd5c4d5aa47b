"""Every file that a run directory may hold: a line for each. The reference of the documentation is made from it."""

from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class RunFile:
    """`name` is a path inside the run directory; * stands for a number or a step."""

    name: str
    written_by: str
    about: str


RUN_FILES = (
    RunFile("config.yaml", "train", "the effective recipe: defaults, file and --set in one"),
    RunFile("resolved.json", "train", "what each `auto` became, with the reason, by attempt; changes while training"),
    RunFile("env.json", "train", "machine, device, versions, command"),
    RunFile("classes.json", "train", "names of the classes in the order of their labels"),
    RunFile("vocabulary.json", "train", "translation: the pieces of words"),
    RunFile("steps.csv", "train", "a row for each optimizer step; rows of a step that was done again come later"),
    RunFile("epochs.csv", "train", "a row for each finished epoch, with the metrics of its validation"),
    RunFile("system.csv", "train", "the machine over time: a row for each interval (docs/monitors.md)"),
    RunFile("system-ranks.csv", "train", "the same of the devices of the other ranks"),
    RunFile("spans/rank*.jsonl", "train", "what the main thread of a rank did when, and its parallel lanes"),
    RunFile("quarantine.csv", "train", "samples that could not be used, each with its reason"),
    RunFile("identity.npz", "train", "what proves that a later attempt trains on the same data"),
    RunFile("shared_order.json", "train", "shared batches: where this run's order begins"),
    RunFile("link.json", "train", "ranks: what the link between them was measured to carry"),
    RunFile("bad_batch.json", "train", "the batches since the last loss that was finite, where one was not"),
    RunFile("summary.json", "train", "status, figures and totals; renewed as the run goes on"),
    RunFile("cost.json", "train", "the bill: lines that add up to the total"),
    RunFile("log.txt", "train", "what was said"),
    RunFile("lock", "train", "held by the process that trains"),
    RunFile("tensorboard/*", "train", "trackers: [tensorboard]: event files"),
    RunFile("checkpoints/step-*.safetensors", "train", "weights, optimizer and progress (docs/checkpoints.md)"),
    RunFile("checkpoints/best.safetensors", "train", "a link to the best one by checkpoint.metric"),
    RunFile("checkpoints/last.safetensors", "train", "a link to the newest one"),
    RunFile("checkpoints/rank*/*", "train", "what each rank has for itself"),
    RunFile("report.html", "report", "the page; also made when a run ends"),
    RunFile("trace.json", "report --trace", "the same timeline for ui.perfetto.dev"),
    RunFile("findings.json", "explain", "verdict, shares and findings"),
    RunFile("predictions.jsonl", "predict", "a line for each prediction, to be scored by the runs that follow"),
    RunFile("probe.json", "probe", "the calibration of the model, where it was measured without a run"),
    RunFile("evaluation.html", "evaluate", "classes, confusions, calibration, the worst samples"),
    RunFile("evaluation.json", "evaluate", "the same for machines"),
    RunFile("lr-find.html", "lr-find", "the loss over the learning rate, with suggestions"),
    RunFile("lr-find.json", "lr-find", "the same for machines"),
)


def described(path: str) -> RunFile | None:
    """The line of a file, by its path inside the run directory."""
    return next((each for each in RUN_FILES if fnmatch(path, each.name)), None)
