"""Configuration: the typed schema, loading with origins, cross-field checks. Names are loaded on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.config.loading import Loaded as Loaded
    from flatout.config.loading import load_config as load_config
    from flatout.config.schema import Config as Config


def __getattr__(name: str) -> Any:
    from flatout.config import loading, schema

    for module in (loading, schema):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
