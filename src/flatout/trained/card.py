"""The model card of an export: what the model is, what it was trained on, how to use it, and what was proven."""

from collections.abc import Mapping
from typing import Any

from flatout.trained.export import MOST_OFF, Proof
from flatout.trained.formats import FILES
from flatout.trained.opening import TrainedRun

NOT_STATED = "not stated: ask whoever gave you the data before you pass the model on"
_USE = {
    "onnx": """```python
import json, onnxruntime, preprocess          # preprocess.py lies beside the model; it needs numpy and Pillow

rules = preprocess.read_rules("preprocessing.json")
session = onnxruntime.InferenceSession("model.onnx")
pixels = preprocess.prepare("picture.jpg", rules)[None]        # uint8 [pictures, 3, height, width], RGB
(probabilities,) = session.run(None, {"pixels": pixels})
print(json.load(open("classes.json"))[probabilities[0].argmax()])
```""",
    "torch": """```python
import json, torch, preprocess                # preprocess.py lies beside the model; it needs numpy and Pillow

rules = preprocess.read_rules("preprocessing.json")
model = torch.export.load("model.pt2").module()
pixels = torch.from_numpy(preprocess.prepare("picture.jpg", rules))[None]      # uint8, RGB
print(json.load(open("classes.json"))[model(pixels)[0].argmax()])
```""",
    "safetensors": """`model.safetensors` holds the weights under the names of the module; `config.yaml` says which
module that is. `preprocess.py` gives normalised float32 images [3, height, width] by `preprocessing.json`:

```python
from safetensors.torch import load_file

module.load_state_dict(load_file("model.safetensors"))
```""",
    "words": """`model.safetensors` holds the weights under the names of the module, `vocabulary.json` the word
pieces, `config.yaml` says which module that is. In flatout: `--checkpoint model.safetensors`.""",
}


def model_card(trained: TrainedRun, to: str, summary: Mapping[str, Any], proven: list[str], licence: str | None) -> str:
    """Markdown."""
    config, weights = trained.config, trained.weights
    facts = [
        ("model", f"{config.model.name}, {sum(p.numel() for p in trained.learner.model.parameters()):,} parameters"),
        ("task", config.task),
        ("classes", f"{len(trained.classes):,}, in classes.json" if trained.classes else None),
        ("data", f"{config.data.path} (fingerprint {summary.get('data_fingerprint', 'unknown')})"),
        ("licence of the data", licence or NOT_STATED),
        ("weights", f"{weights.path.name}, step {weights.step}" if weights.step else weights.path.name),
        ("training", f"{config.train.epochs} epochs, {config.train.optimizer}, seed {config.train.seed}"),
        ("view", config.data.eval_view if config.spec.has_images else None),
    ]
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts if value is not None)
    how = _USE[to if config.spec.has_images else "words"]
    lines = "\n".join(f"- {each}" for each in proven)
    return f"""# {config.name}

Exported by flatout as `{FILES[to]}`.

| | |
|---|---|
{rows}

## Use

{how}

## Proven before it was written

{lines}
"""


def _cell(value: str) -> str:
    return " ".join(str(value).replace("|", "\\|").split())


def proven_lines(proof: Proof) -> list[str]:
    """What a proof of a classifier says, for the card and the terminal."""
    said = "the same most probable output for each"
    if proof.exported_right is not None and proof.top1 is not None:
        share = proof.exported_right / proof.samples
        said = f"top-1 {100 * share:.2f} %, as the run's own model ({100 * proof.top1:.2f} %)"
    return [
        f"{proof.samples:,} samples of the validation set, by the files in this folder alone: {said}",
        f"no probability differs by more than {proof.most_off:.1e} (limit {MOST_OFF:g})",
    ]
