"""The reference of the site, made from the code itself each time the site is built: nothing of it is kept."""

import inspect
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import flatout
from flatout.config.schema import Config
from flatout.config.sections.fields import Section
from flatout.runs.files import RUN_FILES
from flatout.runs.schema import SUMMARY
from flatout.runs.steps import STEP_COLUMNS
from flatout.runs.system import SYSTEM_COLUMNS
from flatout.runs.tables import EPOCH_COLUMNS, QUARANTINE_COLUMNS


def pages() -> dict[str, str]:
    """Path in the site and its Markdown."""
    return {
        "reference/commands.md": commands_page(),
        "reference/keys.md": keys_page(),
        "reference/run-directory.md": run_directory_page(),
        "reference/python.md": python_page(),
    }


# Commands


def commands_page() -> str:
    from flatout.cli import apps, register

    register()
    root: Any = typer.main.get_command(apps.app)
    parts = [
        "# Every command",
        "Made from the commands' own help. Exit codes: 0 done, 1 the run failed, 2 the input is wrong, "
        "130 interrupted (after a checkpoint). Most commands take `--json`.",
    ]
    for words, command in sorted(walk(root, ("flatout",))):
        parts += command_section(words, command)
    return "\n\n".join(parts) + "\n"


def walk(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command by its words; a group that does something by itself, too."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield (*words, name), command
            yield from walk(command, (*words, name))
        else:
            yield (*words, name), command


def command_section(words: tuple[str, ...], command: Any) -> list[str]:
    arguments = [value_word(each) for each in command.params if each.param_type_name == "argument"]
    found = [f"## {' '.join(words)}", f"```text\n{' '.join([*words, *arguments, '[OPTIONS]'])}\n```"]
    found += paragraphs(inspect.cleandoc(command.help or ""))
    rows = [option_row(each) for each in command.params if each.name != "help" and not getattr(each, "hidden", False)]
    if rows:
        found.append(table(("argument or option", "what it does", "default"), rows))
    return found


def paragraphs(text: str) -> list[str]:
    """Examples of a help text are separated by bars."""
    found = []
    for part in text.split("\n\n"):
        if part.startswith(("Example:", "Examples:")):
            lines = [each.strip() for each in part.partition(":")[2].replace("\n", " ").split("   |   ")]
            found.append("```text\n" + "\n".join(lines) + "\n```")
        else:
            found.append(escaped(part))
    return found


def option_row(option: Any) -> tuple[str, str, str]:
    if option.param_type_name == "argument":
        name = value_word(option)
    else:
        value = "" if option.is_flag else f" {value_word(option)}"
        name = f"{', '.join([*option.opts, *option.secondary_opts])}{value}"
    default = option.default if option.default not in (None, False, ()) and not callable(option.default) else ""
    return f"`{name}`", escaped(getattr(option, "help", None) or ""), f"`{default}`" if default != "" else ""


def value_word(option: Any) -> str:
    """What stands for the value on the command line."""
    return str(option.metavar or option.name.upper())


# Keys


def keys_page() -> str:
    parts = [
        "# Every key of a recipe",
        "Made from the schema that checks recipes. Every key has a default; an unknown one is an error that names the "
        "nearest. `--set train.lr=0.1` sets one from the command line; `flatout config show RECIPE` says where each value came from.",
    ]
    top = [(name, field) for name, field in Config.model_fields.items() if section_of(field.annotation) is None]
    parts += ["## Above the sections", key_table("", top)]
    for name, field in Config.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            key = field.alias or name
            parts += [f"## {key}", escaped(field.description or ""), *section_tables(f"{key}.", section)]
    return "\n\n".join(parts) + "\n"


def section_tables(prefix: str, section: type[Section]) -> Iterator[str]:
    """Keys of a section, then those of the sections in it."""
    inner = {name: section_of(field.annotation) for name, field in section.model_fields.items()}
    yield key_table(prefix, [(name, field) for name, field in section.model_fields.items()])
    for name, found in inner.items():
        if found is not None and found is not section:
            yield f"### {prefix}{name}"
            yield from section_tables(f"{prefix}{name}.", found)


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field is, may be, or holds many of."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part)) is not None), None)


def key_table(prefix: str, fields: list[tuple[str, FieldInfo]]) -> str:
    rows = [
        (
            f"`{prefix}{field.alias or name}`",
            f"`{type_words(field.annotation)}`",
            default_words(field),
            escaped(field.description or ""),
        )
        for name, field in fields
    ]
    return table(("key", "takes", "default", "what it does"), rows)


def type_words(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(parts[0])
    if origin is Literal:
        return " or ".join(str(part) for part in parts)
    if origin in (UnionType, typing.Union):
        return " or ".join(type_words(part) for part in parts)
    if origin in (list, tuple):
        return f"list of {type_words(parts[0])}"
    if origin is dict:
        return f"{type_words(parts[1])} by name"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    names = {int: "number", float: "number", str: "text", bool: "true or false", type(None): "null", Any: "anything"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def default_words(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Section):
        return ""
    return f"`{'null' if value is None else value}`" if value not in ("", (), {}) else "empty"


# Files


def run_directory_page() -> str:
    rows = [(f"`{each.name}`", f"`flatout {each.written_by}`", escaped(each.about)) for each in RUN_FILES]
    columns = [
        ("`steps.csv`", listed(STEP_COLUMNS)),
        ("`epochs.csv`", listed(EPOCH_COLUMNS) + ", then the metrics of the task"),
        ("`system.csv`", listed(SYSTEM_COLUMNS) + ", then what this machine has ([monitors](../monitors.md))"),
        ("`quarantine.csv`", listed(QUARANTINE_COLUMNS)),
    ]
    return (
        "\n\n".join(
            [
                "# Every file of a run directory",
                "A run is a folder: `runs/<name>` unless `--run` says otherwise. Files are written beside and renamed, or grow by whole rows, "
                "so they can be read while the run goes on. Who looks at a run changes nothing in it.",
                table(("file", "written by", "what is in it"), rows),
                "## Columns of the tables",
                table(("table", "columns"), columns),
                "## summary.json",
                "Names say unit and quantity; what could not be read is `null`, never 0.",
                table(("name", "is"), [(f"`{name}`", kind) for name, kind in flattened(SUMMARY)]),
            ]
        )
        + "\n"
    )


def listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def flattened(shape: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, kind in shape.items():
        if isinstance(kind, list):
            name, kind = f"{name}[]", kind[0]
        if isinstance(kind, dict) and kind:
            yield from flattened(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", KINDS[kind if isinstance(kind, str) else "section"]


KINDS = {
    "text": "text", "count": "whole number", "amount": "number, not below 0", "number": "number", "flag": "true or false",
    "amounts": "numbers by name", "section": "names and values",
}  # fmt: skip


# Python


def python_page() -> str:
    parts = [
        "# Every public name",
        "`import flatout` is quick: a name is loaded when it is first used. What is not on this page may change.",
    ]
    options = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
    parts += [f"## flatout.{name}\n\n::: {home(name)}\n{options}" for name in flatout.__all__]
    return "\n\n".join(parts) + "\n"


def home(name: str) -> str:
    """Where a public name is defined; the room `recording` is called as a function."""
    thing = getattr(flatout, name)
    if inspect.ismodule(thing):
        return "flatout.recording.opening.open_recording"
    return f"{thing.__module__}.{thing.__qualname__}"


# Markdown


def table(heads: tuple[str, ...], rows: list[Any]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def escaped(text: str) -> str:
    """Text of the code as Markdown: what looks like a tag is not one; pages that it names are links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*")
