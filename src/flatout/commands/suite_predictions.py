"""What the experiments of a suite will take, told by the first of them that is done, before the others begin."""

from collections.abc import Sequence
from contextlib import suppress

from flatout.commands.predict import predict_changes
from flatout.commands.scoring import read_predictions
from flatout.config.loading import config_digest, differences, load_config
from flatout.config.schema import Config
from flatout.decisions.compute import with_precision_of
from flatout.errors import FlatoutError
from flatout.runs import Run


def predict_ahead(reference: Run, configs: Sequence[Config]) -> None:
    """Kept with the run that they are made from; none is made of a change that the model knows nothing of."""
    trained = load_config(reference.config).config
    known = {kept["config_digest"] for kept in read_predictions(reference.directory)}
    for config in configs:
        wanted = with_precision_of(config, trained)
        changes = {key: new for key, _, new in differences(trained, wanted) if key != "name"}
        if changes and config_digest(wanted) not in known:
            with suppress(FlatoutError):
                predict_changes(reference, [changes])


def predicted_epoch(reference: Run, config: Config) -> float | None:
    """Seconds of a mean epoch with its validation and checkpoints; None where nothing was predicted."""
    wanted = config_digest(with_precision_of(config, load_config(reference.config).config))
    kept = [each for each in read_predictions(reference.directory) if each["config_digest"] == wanted]
    epoch = kept[-1].get("whole_epoch") if kept else None
    return float(epoch["value"]) if epoch else None
