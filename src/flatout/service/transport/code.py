"""Which code of users a service runs: none that a message names, unless its owner has allowed it."""

from dataclasses import dataclass

from flatout.service.protocol.stream_spec import ViewSpec


@dataclass(frozen=True)
class AllowedCode:
    """By digest of its source: a name proves nothing, and the file behind it may change.

    Producers load only a text with the digest that the view says (plugins.load).
    """

    anything: bool = False
    """For the service that a job starts for its own user: whoever reaches its socket can run programs as that user."""
    digests: frozenset[str] = frozenset()

    def refusal(self, view: ViewSpec) -> str | None:
        """Why batches of this view are not made here; None where they may be."""
        if not view.transform or self.anything or view.transform_source in self.digests:
            return None
        return (
            f"the service does not run {view.transform[:500]}, source {view.transform_source[:8]}, which its owner has "
            "not allowed; start it with --code FILE"
        )


NO_CODE = AllowedCode()
