"""Configuration: the typed schema, loading with origins, cross-field checks. `Config` is loaded on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.config.schema import Config as Config


def __getattr__(name: str) -> Any:
    if name != "Config":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flatout.config.schema import Config

    return Config
