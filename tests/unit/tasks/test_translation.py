"""The task: what a part weighs, and that BLEU of sums is sacreBLEU's."""

import pytest
import sacrebleu
import torch

from flatout.config.loading import load_config
from flatout.config.schema import Config, VocabularyConfig
from flatout.data.text.vocabulary import BEGIN, END, PAD, Vocabulary, learn_vocabulary
from flatout.errors import ConfigError
from flatout.tasks.translation.bleu import bleu, bleu_signature, bleu_sums
from flatout.tasks.translation.task import TextInputs, Translation, predicted_tokens

pytestmark = pytest.mark.usefixtures("_one_thread")
HYPOTHESES = ["the cat is on the mat", "there is a dog", "he reads books all day long", "no match whatsoever"]
REFERENCES = ["the cat sat on the mat", "there is a dog", "he reads a book all day long", "something else entirely"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return learn_vocabulary(HYPOTHESES + REFERENCES, VocabularyConfig(size=300))


def translation_config(**train: object) -> Config:
    return load_config({"task": "translation", "model": {"width": 0.0625, "dropout": 0.0}, "train": train}).config


def inputs_of(vocabulary: Vocabulary) -> TextInputs:
    def padded(rows: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, rows))
        return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])

    source = padded([[*row, END] for row in vocabulary.encode(HYPOTHESES)])
    target = padded([[BEGIN, *row, END] for row in vocabulary.encode(REFERENCES)])
    return TextInputs(source, source != PAD, target, list(REFERENCES), predicted_tokens(target))


def test_parts_together_have_the_gradient_of_the_whole(vocabulary: Vocabulary) -> None:
    task, inputs = Translation(translation_config(label_smoothing=0.1), vocabulary), inputs_of(vocabulary)
    torch.manual_seed(0)
    model = task.build_model()
    task.loss(model, inputs).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    for count in (2, 3, 9):
        model.zero_grad()
        for part, share in task.parts(inputs, count):
            (task.loss(model, part) * share).backward()
        for gradient, parameter in zip(whole, model.parameters(), strict=True):
            assert torch.allclose(gradient, parameter.grad, atol=1e-6)


def test_weight_is_the_number_of_tokens_the_loss_is_a_mean_over(vocabulary: Vocabulary) -> None:
    task, inputs = Translation(translation_config(), vocabulary), inputs_of(vocabulary)
    assert task.weight(inputs) == sum(len(row) + 1 for row in vocabulary.encode(REFERENCES))
    assert task.weight(task.filler(inputs)) == 1
    assert task.loss(task.build_model(), task.filler(inputs)).isfinite()


def test_bleu_of_summed_batches_is_that_of_the_whole() -> None:
    sums: dict[str, float] = {}
    for part in (slice(0, 1), slice(1, 4)):
        for name, value in bleu_sums(HYPOTHESES[part], REFERENCES[part]).items():
            sums[name] = sums.get(name, 0.0) + value
    assert bleu(sums) == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score, abs=1e-9)
    assert "tok:13a" in bleu_signature()
    assert "nrefs:1" in bleu_signature()


def test_evaluation_translates_and_scores(vocabulary: Vocabulary) -> None:
    task, inputs = Translation(translation_config(label_smoothing=0.0), vocabulary), inputs_of(vocabulary)
    model = task.build_model().eval()
    with torch.inference_mode():
        sums = task.evaluate(model, inputs)
        metrics = task.metrics(sums)
    assert sums["samples"] == 4
    assert metrics["val_loss"] == pytest.approx(task.loss(model, inputs).item(), rel=1e-4)
    assert 0 <= metrics["bleu"] <= 100


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "translation", "data": {"view": "train-224"}}, "data.view .* only when task is classification"),
        ({"data": {"batch_tokens": 100}}, "data.batch_tokens .* only when task is translation"),
        ({"task": "translation", "checkpoint": {"metric": "top1"}}, "translation has bleu, val_loss, train_loss"),
        ({"checkpoint": {"metric": "bleu"}}, "classification has top1"),
        ({"task": "translation", "device": "emulated"}, "depend on sentence lengths"),
        ({"train": {"beta2": 0.98}}, "train.beta2 .* only when train.optimizer is adamw, lamb or muon"),
    ],
)
def test_keys_belong_to_tasks(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(values)


def test_the_task_brings_its_own_defaults() -> None:
    loaded = load_config({"task": "translation", "train": {"optimizer": "sgd", "lr": 3.0}})
    assert (loaded.config.model.name, loaded.config.checkpoint.metric) == ("transformer-small", "bleu")
    assert (loaded.config.train.optimizer, loaded.config.train.lr) == ("sgd", 3.0)
    assert loaded.origins["checkpoint.metric"] == "task translation"
    assert load_config(loaded.config.model_dump(mode="json", by_alias=True)).config == loaded.config
