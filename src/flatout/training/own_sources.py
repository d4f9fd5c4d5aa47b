"""What the user's own code said when a run used it: digests of source, kept in checkpoints and compared by ranks."""

from collections.abc import Iterator, Mapping

from flatout import plugins
from flatout.config.schema import Config
from flatout.engine.parallel import Parallel
from flatout.errors import ConfigError
from flatout.tasks.classification.models import model_is_own

Sources = dict[str, str]
"""Digests by the key that names the code."""


def own_sources(config: Config) -> Sources:
    """Of all code that decides what is trained; trackers only look on."""
    return {key: plugins.source_digest(group, name, key) for group, name, key in _named(config)}


def _named(config: Config) -> Iterator[tuple[str, str, str]]:
    train = config.train
    if model_is_own(config.model.name) and not config.model.name.startswith(("timm:", "torchvision:")):
        yield "models", config.model.name, "model.name"
    for group, name, key in (
        ("tasks", config.task, "task"),
        ("datasets", config.data.layout, "data.layout"),
        ("losses", train.loss, "train.loss"),
        ("optimizers", train.optimizer, "train.optimizer"),
        ("schedules", train.schedule, "train.schedule"),
        *(("metrics", each.name, "validate.metrics") for each in config.validate_.metrics),
        *(("transforms", view.transform or "", f"views.{name}.transform") for name, view in config.views.items()),
    ):
        if plugins.is_user_code(group, name):
            yield group, name, key


def agreed_sources(config: Config, ranks: Parallel) -> Sources:
    """Those of this rank, which must be rank 0's: a file that is edited while ranks start would train two models."""
    own = ranks.together(lambda: own_sources(config))
    main: Sources = ranks.group.from_main(own)

    def compare() -> None:
        if different := [key for key in own.keys() | main.keys() if own.get(key) != main.get(key)]:
            raise ConfigError(
                f"the code of {different[0]} is not the same on rank {ranks.rank} as on rank 0; copy it to every "
                "machine, and leave it alone while ranks start"
            )

    ranks.together(compare)
    return own


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A note on each key whose code is another than before the checkpoint."""
    return [
        f"the code of {key} changed since the checkpoint (source {before[key][:8]} became {now[key][:8]}): the new one "
        "is used"
        for key in now
        if key in before and before[key] != now[key]
    ]
