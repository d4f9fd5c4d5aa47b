"""Train one pair of features and judge it: right, refused in one line that names both, or wrong. There is no fourth."""

import json
import os
import shutil
import signal
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from flatout.runs.tables import effective_rows, read_table
from matrix.features import (
    BATCH_TOKENS,
    BY_NAME,
    EPOCHS,
    GLOBAL_BATCH,
    SUBSET,
    Case,
    Feature,
    comparable,
    impossible,
    names_both,
)
from ranks import places
from servers.s3 import S3Server
from training import (
    CLASSES,
    SAMPLES_PER_CLASS,
    Command,
    Finished,
    assert_adds_up,
    command,
    expected_ledger,
    expected_text_ledger,
    installed_command,
    make_dataset,
    make_sentences,
    recipe,
    row_count,
    start,
    summary,
    trained,
    wait_until,
)

KILL_AFTER_ROWS = 6
CLOSE = 2e-3  # relative: float tolerance of the first steps, before it grows
CLOSE_STEPS = 4


@dataclass(frozen=True)
class Outcome:
    verdict: str  # right | refused | impossible | WRONG
    detail: str


class Wrong(Exception):
    """What a user would not have noticed."""


class Refused(Exception):
    """Before the first step, in one line."""


class Bench:
    """The data in every form, an S3 server, and single-feature runs that are trained once."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self._folder = folder
        self._server = server
        self._singles: dict[str, Path | Refused] = {}
        self._training_single = threading.RLock()  # the weights of a warm start are a single run too
        (folder / "work").mkdir(parents=True, exist_ok=True)
        self._images = make_dataset(folder / "images")
        self._text = make_sentences(folder / "text")
        with tarfile.open(folder / "images.tar", "w") as archive:
            archive.add(self._images, arcname="images")
        with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
            for file in sorted(self._images.rglob("*")):
                zipped.write(file, file.relative_to(folder))
        shutil.copy(folder / "images.zip", folder / "text.zip")  # translation reads none: refused by its kind
        packed = command("data", "pack", self._images, folder / "images-pack", cwd=folder / "work")
        assert packed.code == 0, packed.err
        with tarfile.open(folder / "text.tar", "w") as archive:
            for file in self._text.iterdir():
                archive.add(file, arcname=file.name)
        bucket = Path(server.root) / "matrix"
        for name in ("images", "images.tar", "images.zip", "images-pack", "text", "text.tar", "text.zip"):
            source = folder / name
            if source.is_dir():
                shutil.copytree(source, bucket / name)
            else:
                shutil.copy(source, bucket / name)

    # What is trained

    def path(self, case: Case) -> str:
        ending = {"folder": "", "tar": ".tar", "zip": ".zip", "pack": "-pack"}[case.container]
        name = "images-pack" if case.container == "pack" else f"{case.task}{ending}"
        return f"s3://matrix/{name}" if case.remote else str(self._folder / name)

    def recipe(self, case: Case) -> dict[str, Any]:
        values = recipe(self._images if case.task == "images" else self._text, name="tiny", train__epochs=EPOCHS)
        values["data"]["path"] = self.path(case)
        values["train"] |= {"lr": 0.02, "optimizer": "adamw", "beta2": 0.95, "weight_decay": 0.03}
        if case.task == "images":
            del values["data"]["batch_size"]
            values["data"]["global_batch"] = GLOBAL_BATCH
        else:
            values["data"]["batch_tokens"] = BATCH_TOKENS // case.ranks
            values["model"]["dropout"] = 0.0  # ranks draw their own
        for key, value in case.settings.items():
            *parents, last = key.split(".")
            section = values
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
        return values

    # Training

    def train(self, case: Case, folder: Path) -> Path:
        """The run's directory; Refused or Wrong where there is none."""
        folder.mkdir(parents=True)
        environment = self._environment(folder)
        config = folder / "tiny.yaml"
        config.write_text(yaml.safe_dump(self.recipe(case)), encoding="utf-8")
        if case.tune:
            config = self._tuned(case, config, folder, environment)
        arguments = ["train", config]
        if case.suite:
            suite = folder / "suite.yaml"
            suite.write_text(yaml.safe_dump({"name": "s", "recipe": config.name, "variants": [{"name": "tiny"}]}))
            arguments = ["suite", suite]
        if case.warm:
            arguments += ["--warm-start", self._weights(case)]
        run = folder / "runs" / ("s/tiny" if case.suite else "tiny")
        if case.killed:
            self._kill_once(case, arguments, folder, environment, run)
        self._finish(self._start(case, arguments, folder, environment), run)
        return run

    def _environment(self, folder: Path) -> dict[str, str]:
        """Caches and services of this run alone: what it finds it must have made itself."""
        options = self._server.options()
        return {
            "AWS_ENDPOINT_URL": options["endpoint"], "AWS_REGION": options["region"],
            "AWS_ACCESS_KEY_ID": options["access_key_id"], "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
            "XDG_CACHE_HOME": str(folder / "cache"), "XDG_RUNTIME_DIR": str(folder),
        }  # fmt: skip

    def _start(self, case: Case, arguments: list[Any], folder: Path, environment: Mapping[str, str]) -> list[Command]:
        """Ranks are started as torchrun would, unless a suite or dp starts what it needs."""
        apart = case.ranks if not case.suite and case.settings.get("parallel.mode") in ("ddp", "fsdp") else 1
        return [start(*arguments, cwd=folder, environment={**environment, **place}) for place in places(apart)]

    def _kill_once(
        self, case: Case, arguments: list[Any], folder: Path, environment: Mapping[str, str], run: Path
    ) -> None:
        """kill -9 of everything in the middle; the same command follows."""
        running = self._start(case, arguments, folder, environment)
        wait_until(
            lambda: row_count(run) >= KILL_AFTER_ROWS or not all(each.running for each in running), "the sixth step"
        )
        if not all(each.running for each in running):
            self._finish(running, run)
            raise Wrong("it was over before it could be killed")
        children = [child for each in running for child in (each.children() if case.suite else [])]
        for each in (*running, *children):  # all before anybody is waited for: a rank whose peer is gone ends by itself
            os.kill(each.pid, signal.SIGKILL)
        for each in running:
            each.wait()
        psutil.wait_procs(children)

    def _finish(self, running: list[Command], run: Path) -> None:
        finished = [each.wait() for each in running]
        failed = [each for each in finished if each.code != 0]
        if not failed:
            return
        spoken = next((each for each in failed if each.err.strip()), failed[0])
        codes, said = [each.code for each in finished], spoken.err.strip().splitlines()
        if min(codes) < 0:  # by a signal: all that a crash tells of itself, in full, since it may not come again
            print(*(each.err for each in failed if each.code < 0), sep="\n")
        if any(code not in (0, 2) for code in codes):
            raise Wrong(f"exit {codes}: {said[-1:]}")
        raise Refused(_one_line(spoken, run))

    def _tuned(self, case: Case, config: Path, folder: Path, environment: Mapping[str, str]) -> Path:
        arguments = ["tune", config, "--seconds", "0.5", "--out", folder / "tuned.yaml", "--json"]
        finished = installed_command(*arguments, cwd=folder, environment=environment)  # it has children of its own
        if finished.code == 2:
            raise Refused(_one_line(finished, folder / "no-run"))
        if finished.code != 0:
            raise Wrong(f"tune: exit {finished.code}: {finished.err.strip().splitlines()[-1:]}")
        changes = json.loads(finished.out)["changes"]
        given, written = (yaml.safe_load(path.read_text()) for path in (config, folder / "tuned.yaml"))
        for key, value in {**_flat(given), **changes}.items():
            if key not in changes and _flat(written).get(key) != value:
                raise Wrong(f"tune changed {key} from {value!r} to {_flat(written).get(key)!r} and does not say so")
        return folder / "tuned.yaml"

    def _weights(self, case: Case) -> Path:
        """Of the plain run of the same task."""
        run = self.single("translation") if case.task == "text" else self.plain()
        if isinstance(run, Refused):
            raise Wrong("no weights to start from")
        return sorted((run / "checkpoints").glob("step-*.safetensors"))[-1]

    # What it is compared with

    def plain(self) -> Path:
        return self._once("plain", Case())

    def single(self, name: str) -> Path | Refused:
        """The run with this feature alone."""
        try:
            return self._once(name, BY_NAME[name].apply(Case()))
        except Refused as refusal:
            return refusal

    def _once(self, name: str, case: Case) -> Path:
        with self._training_single:
            known = self._singles.get(name)
            if known is None:
                try:
                    known = self.train(case, self._folder / "singles" / name.replace(" ", "-"))
                except Refused as refusal:
                    known = refusal
                self._singles[name] = known
        if isinstance(known, Refused):
            raise known
        return known

    # A pair

    def judge(self, one: Feature, two: Feature) -> Outcome:
        reason = impossible(one, two)
        if reason is not None:
            return Outcome("impossible", reason)
        case = two.apply(one.apply(Case()))
        folder = self._folder / "pairs" / f"{one.name} x {two.name}".replace(" ", "-")
        try:
            run = self.train(case, folder)
            detail = self._check(case, run, one, two)
        except Refused as refusal:
            return self._refused(str(refusal), one, two)
        except (Wrong, AssertionError) as error:
            return Outcome("WRONG", " ".join(str(error).split())[:400])
        shutil.rmtree(folder, ignore_errors=True)
        return Outcome("right", detail)

    def _refused(self, line: str, one: Feature, two: Feature) -> Outcome:
        if names_both(line, one, two):
            return Outcome("refused", line)
        for feature in (one, two):
            if isinstance(self.single(feature.name), Refused):
                return Outcome("refused", f"{feature.name} alone: {line}")
        return Outcome("WRONG", f"refused, but the line does not name both: {line}")

    def _check(self, case: Case, run: Path, one: Feature, two: Feature) -> str:
        said = summary(run)
        if said["status"] != "completed":
            raise Wrong(f"exit 0 but the run is {said['status']}: {said['cause']}")
        for feature in (one, two):
            if not feature.in_effect(said):
                raise Wrong(f"{feature.name} was silently not in effect")
        self._check_samples(case, run, said)
        plain = self.plain() if case.task == "images" else self.single("translation")
        assert isinstance(plain, Path)
        others = [self.single(feature.name) for feature in (one, two) if feature.own_optimizer]
        trained_like = next((each for each in others if isinstance(each, Path)), plain)
        if (ours := _optimizer(said)) != (wanted := _optimizer(summary(trained_like))):
            raise Wrong(f"optimizer {ours} instead of {wanted}")
        assert_adds_up(run)
        found = [
            f"{_compare(feature.keeps, run, reference)} as {other.name} alone"
            for feature, other in ((one, two), (two, one))
            if comparable(feature, other) and isinstance(reference := self.single(other.name), Path)
        ]
        return "; ".join(["samples of every step", *found])

    def _check_samples(self, case: Case, run: Path, said: Mapping[str, Any]) -> None:
        written = yaml.safe_load((run / "config.yaml").read_text())["data"]
        if case.task == "text":
            wanted = expected_text_ledger(
                run, EPOCHS, data=self._text, batch_tokens=written["batch_tokens"] * case.ranks
            )
        else:
            samples = (SUBSET if "data.classes" in case.settings else CLASSES) * SAMPLES_PER_CLASS
            balanced = "data.balance" in case.settings
            wanted = expected_ledger(samples, written["global_batch"], EPOCHS, balanced=balanced)
        rows = [row[:5] for row in trained(run)]
        if rows != wanted:
            first = next(
                (at for at, pair in enumerate(zip(rows, wanted, strict=False)) if pair[0] != pair[1]), len(rows)
            )
            raise Wrong(f"{len(rows)} steps for {len(wanted)}; the first other one is number {first + 1}")
        if said["samples_seen"] != sum(int(row[3]) for row in wanted):
            raise Wrong(f"samples_seen is {said['samples_seen']}")


def _compare(keeps: str, run: Path, reference: Path) -> str:
    ours, theirs = (
        [float(row["loss"]) for row in effective_rows(read_table(each / "steps.csv"), "step")]
        for each in (run, reference)
    )
    if keeps == "close":
        pairs = list(zip(ours, theirs, strict=True))[:CLOSE_STEPS]
        far = [pair for pair in pairs if abs(pair[0] - pair[1]) > CLOSE * abs(pair[1])]
        if far:
            raise Wrong(f"losses {ours[:CLOSE_STEPS]} instead of {theirs[:CLOSE_STEPS]}")
        return "losses to float tolerance"
    if ours != theirs:
        first = next(at for at, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        raise Wrong(f"loss of step {first + 1} is {ours[first]} instead of {theirs[first]}")
    if keeps == "bits" and summary(run)["state_digest"] != summary(reference)["state_digest"]:
        raise Wrong("equal losses, other weights")
    return "the same bits" if keeps == "bits" else "the same losses"


def _optimizer(said: Mapping[str, Any]) -> dict[str, Any]:
    """Without the number of parameters, which follows from the classes, and what parts of the model have of their own."""
    values, groups = said["optimizer"], []
    for group in values["groups"]:
        kept = {key: value for key, value in group.items() if key not in ("parameters", "name", "lr_scale")}
        groups += [kept] if kept not in groups else []
    return {**values, "groups": sorted(groups, key=repr)}  # of which layer comes first is no matter


def _one_line(finished: Finished, run: Path) -> str:
    lines = finished.err.strip().splitlines()
    if len(lines) != 1:
        raise Wrong(f"refused in {len(lines)} lines: {lines[-1:]}")
    if row_count(run):
        raise Wrong(f"refused after {row_count(run)} steps: {lines[0]}")
    return lines[0].removeprefix("flatout: ")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
