"""The text of resolved.json: what each attempt decided, and what was changed while it trained.

    {"version": 2,
     "attempts": [{"attempt": 1, "step": 0, "time_unix": ..., "decided": {...}}],
     "changes": [{"attempt": 1, "step": 40, "time_unix": ..., "key": "data.workers", "value": 3, "reason": "..."}]}

Entries are only ever appended. Version 1 had one entry, `cache`, of the newest attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flatout.decisions.choice import Change
from flatout.decisions.resolved import Resolved, overlay

VERSION = 2


def with_attempt(
    document: Mapping[str, Any], resolved: Resolved, attempt: int, step: int, time_unix: float
) -> dict[str, Any]:
    """`step` is the last one that was done before this attempt."""
    entry = {"attempt": attempt, "step": step, "time_unix": time_unix, "decided": resolved.to_dict()}
    return {
        "version": VERSION,
        "attempts": [*_entries(document, "attempts"), entry],
        "changes": _entries(document, "changes"),
    }


def with_changes(
    document: Mapping[str, Any], changes: Iterable[Change], attempt: int, step: int, time_unix: float
) -> dict[str, Any]:
    """`step` is the last one that was done when they were seen."""
    at = {"attempt": attempt, "step": step, "time_unix": time_unix}
    return {**document, "changes": [*_entries(document, "changes"), *({**at, **vars(each)} for each in changes)]}


def read_decisions(document: Mapping[str, Any], assumed: Resolved) -> Resolved:
    """What the newest attempt decided, with its changes; `assumed` where the document does not say it. Never raises:
    a document of another kind says nothing."""
    attempts = _entries(document, "attempts")
    if not attempts:  # version 1
        return overlay(assumed, {"data": document})
    newest = attempts[-1]
    resolved: Resolved = overlay(assumed, newest.get("decided"))
    for change in _entries(document, "changes"):
        if change.get("attempt") == newest.get("attempt"):
            resolved = _changed(resolved, change)
    return resolved


def most_of(key: str, document: Mapping[str, Any], resolved: Resolved) -> int:
    """The largest value that a key had in the newest attempt: a pool that adapts may have fewer workers at its end."""
    attempts = _entries(document, "attempts")
    newest = attempts[-1] if attempts else {}
    told = [each for each in _entries(document, "changes") if each.get("attempt") == newest.get("attempt")]
    values = [each.get("value") for each in told if each.get("key") == key]
    first: int = read_decisions({"attempts": attempts}, resolved).find(key).value
    return max([first, *(value for value in values if type(value) is int)])


def _changed(resolved: Resolved, change: Mapping[str, Any]) -> Resolved:
    """With one key of another value; a whole section where the job went on with a loader of its own."""
    told: Any = change.get("value")
    for name in reversed(str(change.get("key")).split(".")):
        told = {name: told if isinstance(told, Mapping) else {"value": told, "reason": str(change.get("reason"))}}
    return overlay(resolved, told)


def _entries(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = document.get(name)
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
