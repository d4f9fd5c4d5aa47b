"""plan, fit and prices as a user types them."""

import json
from pathlib import Path

import pytest
import yaml

from flatout.commands.plan import Question, make_plan
from flatout.planning.options import Option
from training import command

RESNET = {
    "name": "planned",
    "data": {"path": "nowhere", "view": "train-64", "eval_view": "eval-64", "batch_size": 128},
    "model": {"name": "resnet18", "width": 0.25},
    "train": {"epochs": 3},
}
PEEKS = """
from torch import nn

class Peeks(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.out = nn.Linear(3, classes)

    def forward(self, x):
        return self.out(x.mean((2, 3)) * (2 if x.max().item() > 0 else 1))
"""


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    path = tmp_path / "planned.yaml"
    path.write_text(yaml.safe_dump(RESNET))
    return path


def plan(path: Path, cwd: Path, *more: str) -> dict:
    done = command("plan", path, "--data", "tiny-imagenet", *more, "--json", cwd=cwd)
    assert done.code == 0, done.err
    return json.loads(done.out)


class TestPlan:
    def test_says_for_named_machines_what_the_issue_names(self, planned: Path, tmp_path: Path) -> None:
        told = plan(planned, tmp_path, "--on", "g4dn.xlarge,g5.xlarge")
        keys = {"machine", "gpu", "gpus", "fits", "peak_bytes", "largest_batch", "device_samples_per_second",
                "samples_per_second", "limit", "hours", "usd", "basis", "changes"}  # fmt: skip
        assert all(keys <= set(option) for option in told["options"])
        assert {(each["machine"], each["gpu"]) for each in told["options"]} == {
            ("g4dn.xlarge", "T4"),
            ("g5.xlarge", "A10G"),
        }
        assert set(told["best"]) == {"cheapest", "fastest"}
        for option in told["options"]:
            assert option["basis"]
            assert option["hours"]["low"] < option["hours"]["value"] < option["hours"]["high"]

    def test_plans_every_machine_without_data_weights_or_card(self, planned: Path, tmp_path: Path) -> None:
        told = plan(planned, tmp_path)
        assert len(told["options"]) > 300
        assert told["best"]["cheapest"]["usd"]["value"] <= min(each["usd"]["value"] for each in told["options"])

    def test_a_card_at_home_has_no_price_and_sizes_can_be_given(self, planned: Path, tmp_path: Path) -> None:
        done = command(
            "plan", planned, "--samples", "5000", "--sample-bytes", "4kB", "--gpu", "T4", "--json", cwd=tmp_path
        )
        assert done.code == 0, done.err
        (option,) = json.loads(done.out)["options"]
        assert option["usd"] is None
        assert option["samples_per_second"]["value"] > 0

    def test_measures_the_data_where_it_is_here(self, shapes: Path, tmp_path: Path) -> None:
        path = tmp_path / "here.yaml"
        path.write_text(yaml.safe_dump({**RESNET, "data": {**RESNET["data"], "path": str(shapes), "batch_size": 8}}))
        done = command("plan", path, "--gpu", "A10G", "--json", cwd=tmp_path)
        assert done.code == 0, done.err
        assert json.loads(done.out)["data_basis"].startswith("decoded here")

    def test_writes_a_recipe_that_loads_files_to_start_with_and_a_page(self, planned: Path, tmp_path: Path) -> None:
        told = plan(planned, tmp_path, "--on", "g5.xlarge", "--emit", "start", "--html", "plan.html")
        assert {Path(path).suffix for path in told["written"]} == {".yaml", ".sh", ".html"}
        emitted = tmp_path / next(path for path in told["written"] if path.endswith("xlarge.yaml"))
        shown = command("config", "show", emitted, "--json", cwd=tmp_path)
        assert shown.code == 0, shown.err
        assert json.loads(shown.out)["stop.max_usd"]["value"] > 0
        assert "<svg" in (tmp_path / "plan.html").read_text()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--gpu", "RTX3090", "--data", "tiny-imagenet"], "RTX 3090"),
            (["--on", "g4dn.xlage", "--data", "tiny-imagenet"], "g4dn.xlarge"),
            (["--gpu", "T4"], "--samples"),
            (["--gpu", "T4", "--data", "tiny-imagenet", "--store", "tape"], "nvme"),
            (["--gpu", "T4", "--samples", "9", "--sample-bytes", "0"], "--sample-bytes"),
            (["--on", "mine", "--data", "tiny-imagenet", "--set", "cost.prices=mine.yaml"], "no figures of FooCard"),
            (
                [
                    "--gpu",
                    "T4",
                    "--data",
                    "tiny-imagenet",
                    "--set",
                    "model.name=./peeks.py:Peeks",
                    "--set",
                    "model.width=1",
                ],
                "values of its tensors",
            ),
        ],
    )
    def test_a_mistake_is_one_line(self, planned: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
        prices = {"dated": "2026-01-01", "instances": {"mine": {"usd_per_hour": 1.0, "gpu": "FooCard", "gpus": 1}}}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(prices))
        (tmp_path / "peeks.py").write_text(PEEKS)
        done = command("plan", planned, *arguments, cwd=tmp_path)
        assert done.code == 2
        assert len(done.err.strip().splitlines()) == 1
        assert said in done.err

    def test_a_stem_for_small_images_is_said_at_224_pixels(self, planned: Path, tmp_path: Path) -> None:
        large = ("--set", "data.view=train-224", "--set", "data.eval_view=eval-224")
        assert any("model.stem=standard" in note for note in plan(planned, tmp_path, "--gpu", "T4", *large)["notes"])
        assert plan(planned, tmp_path, "--gpu", "T4")["notes"] == []

    def test_an_accuracy_takes_its_epochs_from_a_run(self, uninterrupted: Path) -> None:
        from flatout.commands.plan import epochs_to

        assert epochs_to(0.0, uninterrupted)[0] == 1
        assert epochs_to(200.0, uninterrupted)[0] is None
        assert "--measured" in epochs_to(76.0, None)[1]

    def test_an_impossible_limit_has_no_best(self, planned: Path, tmp_path: Path) -> None:
        told = plan(planned, tmp_path, "--on", "g5.xlarge", "--deadline", "1s", "--max-usd", "0.0001")
        assert told["best"] == {"cheapest": None, "fastest": None}
        assert command("plan", planned, "--data", "tiny-imagenet", "--on", "g5.xlarge", cwd=tmp_path).code == 0

    def test_a_run_that_follows_is_scored(self, uninterrupted: Path, planned: Path, tmp_path: Path) -> None:
        from flatout.commands.plan_files import follow_plan, score_plans

        told = plan(planned, tmp_path, "--gpu", "T4")
        runs = tmp_path / "runs"
        assert score_plans(runs) == []
        stored = runs / "plans" / f"{told['plan']}.json"
        stored.write_text(json.dumps({**json.loads(stored.read_text()), "made_unix": 0.0}))
        (score,) = follow_plan(told["plan"], uninterrupted, runs)
        assert score_plans(runs) == [score]  # though the run lies in another folder
        assert score["planned"] == told["options"][0]["samples_per_second"]["value"]
        assert score["error"] == pytest.approx(score["planned"] / score["measured"] - 1)

    def test_an_unknown_plan_is_refused_before_training(self, planned: Path, tmp_path: Path) -> None:
        done = command("train", planned, "--plan", "nothing", cwd=tmp_path)
        assert done.code == 2
        assert "no plan" in done.err


class TestStories:
    """What a plan would have said before each story (docs/plan.md), also where it is wrong."""

    def option(self, tmp_path: Path, model: str, pixels: int, batch: int, **question: object) -> Option:
        given = {
            "name": "story",
            "data": {"path": "x", "view": f"train-{pixels}", "eval_view": f"eval-{pixels}", "batch_size": batch},
            "model": {"name": model, "stem": "standard"},
            "train": {"epochs": 10, "precision": question.pop("precision", "auto")},
        }
        return make_plan(given, {}, Question(**question)).options[0]

    def test_d_an_a10g_holds_batch_256_and_trains_at_2_9_steps_a_second(self, tmp_path: Path) -> None:
        told = self.option(tmp_path, "resnet50", 224, 256, data="imagenet-100", machines=("g5.2xlarge",))
        assert told.memory.peak_bytes == pytest.approx(12.9e9, rel=0.1)
        assert told.device_per_second.contains(741)
        assert 384 <= told.largest_batch <= 512
        assert told.limit == "device"

    def test_e_an_rtx_5000_holds_batch_512_in_32_bits(self, tmp_path: Path) -> None:
        told = self.option(tmp_path, "resnet18", 224, 512, data="tiny-imagenet", gpus=("RTX 5000",), precision="fp32")
        assert told.memory.peak_bytes == pytest.approx(14.36e9, rel=0.1)
        assert told.fits

    def test_a_a_t4_needs_no_service_for_small_images(self, tmp_path: Path) -> None:
        told = self.option(tmp_path, "resnet18", 64, 256, data="tiny-imagenet", machines=("g4dn.xlarge",))
        assert told.usd is not None
        assert told.usd.high < 0.2
        assert told.memory.peak_bytes < 2e9

    def test_b_a_port_of_100_megabits_is_seen_before_the_money_is_spent(self, tmp_path: Path) -> None:
        prices = tmp_path / "slow.yaml"
        prices.write_text("dated: 2026-11\ninstances: {Standard_NC12s_v3: {network_gbps: 0.1}}\n")
        text = {"name": "text", "task": "translation", "model": {"name": "transformer-base"}, "train": {"max_steps": 50000},
                "data": {"path": "x", "source_language": "en", "target_language": "de", "batch_tokens": 16384,
                         "vocabulary": {"size": 37000}},
                "cost": {"prices": str(prices)}}  # fmt: skip
        told = make_plan(text, {}, Question(samples=4_500_000, machines=("Standard_NC12s_v3",), nodes=2)).options[0]
        assert told.limit == "network"
        assert told.waiting_share > 0.9


class TestFit:
    def test_shows_parts_and_the_largest_batch_of_each_card(self, planned: Path, tmp_path: Path) -> None:
        done = command("fit", planned, "--gpu", "T4,A10G", "--json", cwd=tmp_path)
        assert done.code == 0, done.err
        told = json.loads(done.out)
        assert {"weights", "gradients", "optimizer", "activations", "workspace", "context", "fragments"} <= set(
            told["parts"]
        )
        small, large = told["cards"]
        assert small["largest_batch"]["as it is"] < large["largest_batch"]["as it is"]
        sizes = large["largest_batch"]
        assert sizes["32 bits"] < sizes["16 bits"] < sizes["checkpointing"]

    def test_a_model_that_does_not_exist_is_one_line(self, planned: Path, tmp_path: Path) -> None:
        done = command("fit", planned, "--set", "model.name=resnet19", cwd=tmp_path)
        assert done.code == 2
        assert "resnet18" in done.err

    def test_translation_is_traced_too(self, tmp_path: Path) -> None:
        path = tmp_path / "text.yaml"
        text = {"name": "text", "task": "translation", "data": {"path": "x", "source_language": "en", "target_language": "de"},
                "model": {"name": "transformer-small"}}  # fmt: skip
        path.write_text(yaml.safe_dump(text))
        done = command("fit", path, "--gpu", "T4", "--json", cwd=tmp_path)
        assert done.code == 0, done.err
        assert json.loads(done.out)["cards"][0]["fits"]


class TestPrices:
    def test_shows_machines_and_cards(self, tmp_path: Path) -> None:
        machines = json.loads(command("prices", "show", "--json", cwd=tmp_path).out)
        assert any(each["name"] == "g5.xlarge" and each["gpu"] == "A10G" for each in machines)
        cards = json.loads(command("prices", "show", "--cards", "--json", cwd=tmp_path).out)
        assert any(each["name"] == "T4" for each in cards)

    def test_an_imported_catalogue_is_used_by_a_plan(self, planned: Path, tmp_path: Path) -> None:
        (tmp_path / "aws.csv").write_text(
            "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
            "mine.xlarge,4,16,T4,1,0.1,,us-east-1\n"
        )
        done = command("prices", "import", "aws.csv", "--out", "mine.yaml", cwd=tmp_path)
        assert done.code == 0, done.err
        told = plan(planned, tmp_path, "--on", "mine.xlarge", "--set", "cost.prices=mine.yaml")
        (option,) = told["options"]
        assert option["usd"]["value"] == pytest.approx(0.1 * option["hours"]["value"])
