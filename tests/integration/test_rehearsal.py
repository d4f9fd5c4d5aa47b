"""A sample of `make rehearse`: story recipes as they ship, on a small dataset in the real layout."""

from pathlib import Path

import pytest

from flatout.config.shipped import shipped
from rehearsal.stories import STORIES, Story, rehearse

SAMPLE = ("imagenet-resnet18-g5-2node",)


@pytest.mark.slow
@pytest.mark.parametrize("story", [each for each in STORIES if each.name in SAMPLE], ids=lambda each: each.name)
def test_a_story_recipe_passes_doctor_and_its_rehearsal(story: Story, tmp_path: Path) -> None:
    assert rehearse(story, tmp_path) == []


def test_every_story_is_shipped_and_none_points_at_a_place_of_ours() -> None:
    files = {each.name: each for each in shipped()}
    assert {story.name for story in STORIES} <= set(files)
    for each in files.values():
        text = each.path.read_text()
        assert "../shared" not in text, each.name
        assert text.startswith("# "), f"{each.name} has no line for flatout recipes"
