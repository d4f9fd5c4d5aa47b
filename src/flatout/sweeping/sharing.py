"""Which configurations can share batches: those whose batches are the same."""

import json
from collections.abc import Sequence

from flatout.config.schema import Config

_LOADING_ONLY = {
    "workers",
    "worker_kind",
    "prefetch",
    "cache",
    "memory",
    "stage",
    "batch_deadline_seconds",
    "class_weights",
    "max_quarantine_share",
    "shared",
    "shared_token",
    "shared_tls_ca",
    "shared_bytes",
    "shared_start",
}
"""Keys of `data` that change no batch."""


def sharing_groups(configs: Sequence[Config]) -> list[list[int]]:
    """Positions of configurations with equal batches, in the order of the first of each group."""
    groups: dict[str, list[int]] = {}
    for at, config in enumerate(configs):
        groups.setdefault(_batches_of(config), []).append(at)
    return list(groups.values())


def _batches_of(config: Config) -> str:
    values = config.model_dump(mode="json", by_alias=True)
    data = {key: value for key, value in values["data"].items() if key not in _LOADING_ONLY}
    ranks = [values["parallel"]["mode"], values["parallel"]["devices"]]
    return json.dumps([values["task"], data, values["views"], values["train"]["seed"], ranks], sort_keys=True)
