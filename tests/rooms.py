"""The import-linter contract of .importlinter: a room imports only the rooms that its row names."""

from typing import Any

from importlinter import Contract, ContractCheck, fields, output


class RoomsContract(Contract):
    """`rows` are lines of `room: room room ...`; `*` stands for every room. A room without a row is a violation too.

    Imports inside functions count, those under TYPE_CHECKING do not (exclude_type_checking_imports).
    """

    rows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        allowed = {room: set(named.split()) for room, _, named in (row.partition(":") for row in self.rows)}  # type: ignore[attr-defined]
        wrong = []
        for module in sorted(graph.modules):
            room = _room(module)
            for other in sorted(graph.find_modules_directly_imported_by(module)):
                target = _room(other)
                if room and target and room != target and not allowed.get(room, set()) & {target, "*"}:
                    wrong.append(f"{module} -> {other}")
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(line)
        output.print("Its row in .importlinter names what a room may import (DESIGN section 2, docs/map.md).")


def _room(module: str) -> str | None:
    """The part behind `flatout.`; None of the package itself and of what is not ours."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return room if package == "flatout" and room and room != "__main__" else None
