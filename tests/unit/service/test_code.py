"""A service runs no code that a message names, unless its owner has allowed that text."""

from pathlib import Path

import pytest

from flatout.commands.serve import ServeOptions, _remote_options
from flatout.data.pixels.views import View
from flatout.errors import ConfigError
from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.protocol.messages import Hello, Refused, Register
from flatout.service.protocol.specs import batch_bytes, describe, open_preparer, stream_name
from flatout.service.transport.roots import NO_CODE, AllowedCode
from flatout.service.transport.server import SessionRegistry
from sharing import data_config, make_plan


@pytest.fixture
def register(tmp_path: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> Register:
    """A job's first message, of a view with a transform that leaves a mark when it is loaded."""
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef same(image, random): return image\n")
    plan = make_plan(shapes)
    view = View("own", crop="centre", size=16, transform="./mine.py:same")
    plan = type(plan)(plan.split, view, 0, 8)
    spec = describe(plan, data_config(shapes), "train")
    assert spec.view_values.transform == f"{tmp_path}/mine.py:same"
    sizes = {"batches_per_epoch": 3, "batch_bytes": batch_bytes(plan), "position": 0}
    return Register(stream=stream_name(spec), spec=spec, **sizes)


def answer(register: Register, code: AllowedCode) -> object:
    said: list[object] = []

    class Store:
        address = "nowhere"

    class Quiet:
        store = Store()

        def say(self, who: str, message: object) -> None:
            said.append(message)

    quiet: Coordinator = Quiet()  # type: ignore[assignment]
    sessions = SessionRegistry(quiet, "token", code=code)
    who, _ = sessions.greet(Hello(token="token", role="job", name="j"))
    refused = sessions.receive(who, register)
    return refused if refused is not None else said[0]


def test_code_needs_the_owners_word(register: Register, tmp_path: Path) -> None:
    refused = answer(register, NO_CODE)
    assert isinstance(refused, Refused)
    assert "mine.py:same" in refused.reason
    assert "--code FILE" in refused.reason
    assert isinstance(answer(register, AllowedCode(anything=True)), Register)
    allowed = _remote_options(ServeOptions(code=("mine.py",))).code
    assert isinstance(answer(register, allowed), Register)
    assert not (tmp_path / "ran").exists(), "looking at it is not running it"
    (tmp_path / "mine.py").write_text("def same(image, random): return image * 0\n")
    assert isinstance(answer(register, _remote_options(ServeOptions(code=("mine.py",))).code), Refused)
    with pytest.raises(ConfigError, match=r"--code is 'mime.py:any': no file .* did you mean mine.py\?"):
        _remote_options(ServeOptions(code=("mime.py",)))


def test_a_producer_runs_only_the_text_that_was_allowed(register: Register, tmp_path: Path) -> None:
    import numpy as np

    preparer = open_preparer(register.spec)
    (tmp_path / "mine.py").write_text("def same(image, random): return image * 0\n")
    with pytest.raises(ConfigError, match="source changed while it is in use"):
        preparer.prepare(0, 0, np.empty(register.batch_bytes, np.uint8))
