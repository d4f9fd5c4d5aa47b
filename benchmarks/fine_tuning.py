"""What weights are worth: 10 classes of Tiny-ImageNet, from scratch and from weights of 30 other classes.

A small ResNet is trained on 30 classes; then, on the 10 that it has never seen, once from scratch and once from those
weights (`model.weights: run:DIR`) for a third of the epochs. All of it by `flatout train`, in processes of its own.

    python benchmarks/fine_tuning.py --data ../shared/data/tiny-imagenet-40.tar [--out benchmarks/results]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from dated_results import publish
from flatout.config.loading import load_config
from flatout.data.source.dataset import open_dataset
from flatout.runs.tables import read_table

OTHERS, SAMPLES_PER_CLASS, PRETRAIN_EPOCHS, SCRATCH_EPOCHS, TUNED_EPOCHS = 10, 250, 8, 6, 2


def recipe(data: Path, classes: list[str], epochs: int, **more) -> dict:
    values = {
        "device": "cpu",
        "data": {
            "path": str(data),
            "view": "small-train",
            "eval_view": "small-eval",
            "batch_size": 64,
            "workers": 1,
            "classes": classes,
            "samples_per_class": SAMPLES_PER_CLASS,
        },
        "views": {
            "small-train": {"base": "train-224", "size": 24, "scale": [0.35, 1.0]},
            "small-eval": {"base": "eval-64", "size": 32},
        },
        "model": {"name": "resnet18", "stem": "small", "width": 0.25},
        "train": {"epochs": epochs, "lr": 0.2, "warmup_epochs": 1},
        "checkpoint": {"keep_top": 1},
    }
    for key, value in more.items():
        section, name = key.split("__")
        values[section][name] = value
    return values


def train(folder: Path, name: str, values: dict) -> dict:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **values}))
    command = [sys.executable, "-m", "flatout", "train", f"{name}.yaml", "--run", f"runs/{name}", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    rows = read_table(folder / "runs" / name / "epochs.csv")
    return {"summary": json.loads(done.stdout), "top1": [float(row["top1"]) for row in rows]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="file or folder for the dated result")
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    classes = list(open_dataset(load_config({"data": {"path": str(data)}}).config.data).classes)
    known, others = classes[:-OTHERS], classes[-OTHERS:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = train(folder, "before", recipe(data, known, PRETRAIN_EPOCHS))
        scratch = train(folder, "scratch", recipe(data, others, SCRATCH_EPOCHS))
        weights = f"run:{folder}/runs/before"
        tuned = train(
            folder,
            "tuned",
            recipe(data, others, TUNED_EPOCHS, model__weights=weights, train__lr=0.1, train__warmup_epochs=0.2),
        )
        groups = [{"match": "fc", "lr_scale": 10}]
        frozen = train(
            folder,
            "head",
            recipe(
                data,
                others,
                TUNED_EPOCHS,
                model__weights=weights,
                model__freeze=["*", "!fc"],
                train__groups=groups,
                train__lr=0.1,
                train__warmup_epochs=0.2,
            ),
        )
    rows = {
        f"{len(known)} classes, from scratch": before,
        f"{OTHERS} others, from scratch": scratch,
        f"{OTHERS} others, from those weights": tuned,
        f"{OTHERS} others, from those weights, only the last layer": frozen,
    }
    lines = ["| | epochs | top-1 after each epoch |", "|---|---:|---|"]
    lines += [
        f"| {what} | {len(run['top1'])} | {', '.join(f'{100 * each:.1f} %' for each in run['top1'])} |"
        for what, run in rows.items()
    ]
    reached = tuned["top1"][-1] >= max(scratch["top1"])
    verdict = f"{TUNED_EPOCHS} epochs from weights reach {100 * tuned['top1'][-1]:.1f} %, {SCRATCH_EPOCHS} from scratch {100 * max(scratch['top1']):.1f} %"
    lines += ["", f"{verdict}: {'at least as much' if reached else 'LESS'} in a third of the epochs."]
    publish(
        "fine-tuning",
        "Fine-tuning on classes of Tiny-ImageNet that the weights have not seen",
        "\n".join(lines) + "\n",
        arguments.out,
    )
    sys.exit(not reached)


if __name__ == "__main__":
    main()
