"""Labels of a target on disk, and a draft that learns from them with a cut vocabulary."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from draft_model.commands.evaluate import held_out
from draft_model.core import PipelineError, Preset
from draft_model.data.shards import LIKELY, LOGPROBS, MANIFEST, load_data, read_manifest
from draft_model.data.tokenizer import load_tokenizer
from draft_model.labels import NUM_LABELS, label
from draft_model.models import export_model, load_model, make_model
from draft_model.training.losses import divergences, label_divergences
from draft_model.training.run import Lineage, train
from draft_model.training.trainer import collate
from draft_model.training.vocabulary import EMBEDDINGS, CutVocabulary
from draft_model.training.vocabulary import KEPT as KEPT_FILE
from tests.support.models import TARGET
from tests.unit.draft_model.test_training import steps_of
from tests.unit.draft_model.tiny import SHAPE, VOCAB_SIZE

SIZE, PADDING = VOCAB_SIZE, 8
KEPT = 200


@pytest.fixture(scope="module")
def target(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A padded model of the data's tokenizer, with opinions."""
    shape, folder = replace(SHAPE, vocab_size=SHAPE.vocab_size + PADDING), tmp_path_factory.mktemp("made") / "target"
    model = make_model(shape, 1)
    torch.nn.init.normal_(model.model.embed_tokens.weight, generator=torch.Generator().manual_seed(1))
    export_model(model.state_dict(), shape, load_tokenizer(data / "tokenizer"), "", folder)
    return folder


@pytest.fixture(scope="module")
def labelled(data: Path, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "labelled"
    label(target, data, out, 4096)
    return out


def test_labels_are_the_targets_most_likely_tokens_of_every_block_of_the_data(
    data: Path, labelled: Path, target: Path
) -> None:
    ours, theirs = load_data(labelled), load_data(data)
    assert sorted(row["ids"].tobytes() for row in ours) == sorted(row["ids"].tobytes() for row in theirs)
    assert read_manifest(labelled)["vocab_size"] == read_manifest(data)["vocab_size"] + PADDING
    batch, model = collate([ours[0]]), load_model(target, torch.bfloat16)
    with torch.no_grad():
        expected = model(input_ids=batch["ids"]).logits.float().log_softmax(-1).topk(NUM_LABELS)
    assert batch[LIKELY].shape == (*batch["ids"].shape, NUM_LABELS)
    torch.testing.assert_close(batch[LOGPROBS], expected.values, atol=0.05, rtol=0.01)
    assert float((batch[LIKELY][..., 0] == expected.indices[..., 0]).float().mean()) > 0.9, "but for equal logits"


def test_the_same_command_makes_the_missing_labels_and_no_others(
    data: Path, labelled: Path, target: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(labelled, again)
    shutil.rmtree(again / "shard-00001")
    with pytest.raises(PipelineError, match="lacks 1 of 2 shards; run the same `draft-model label` again"):
        load_data(again)
    done: list[int] = []
    label(target, data, again, 4096, lambda count, _total: done.append(count))
    assert (done[0], done[-1]) == (2048, 4096)
    assert all(
        np.array_equal(*pair) for pair in zip(load_data(again)[LIKELY], load_data(labelled)[LIKELY], strict=True)
    )


def test_labels_that_cannot_be_made_are_refused(data: Path, labelled: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"has 4,096 tokens, 6,144 are to be labelled"):
        label(target, data, tmp_path / "more", 4097)
    with pytest.raises(PipelineError, match="is labelled already"):
        label(target, labelled, tmp_path / "twice", 2048)
    with pytest.raises(PipelineError, match="tokens differ"):
        label(TARGET, data, tmp_path / "other", 2048)
    with pytest.raises(PipelineError, match="made otherwise"):
        label(target, data, labelled, 2048)
    other = shutil.copytree(data, tmp_path / "data")
    manifest = json.loads((other / MANIFEST).read_text())
    manifest["settings"]["num_tokens"] -= 1
    (other / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(PipelineError, match=r"made otherwise \(data "):
        label(target, other, labelled, 4096)


def test_the_divergence_from_labels_is_that_from_all_logits_when_all_that_counts_is_labelled() -> None:
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (torch.randn(7, 12, generator=generator) * 2 for _ in range(2))
    found = theirs.log_softmax(-1).topk(11)
    whole = divergences(ours, theirs)
    torch.testing.assert_close(label_divergences(ours, found.indices, found.values), whole, atol=1e-4, rtol=1e-3)
    few = label_divergences(ours, found.indices[:, :3], found.values[:, :3])
    assert bool((few <= whole + 1e-5).all()), "tokens taken as one hide what differs among them"
    assert bool((few >= -1e-5).all())
    masked = found.values.clone()
    masked[:, 3:] = -torch.inf
    torch.testing.assert_close(label_divergences(ours, found.indices, masked), few)


def test_a_cut_vocabulary_keeps_the_frequent_tokens_and_takes_the_others_as_one(data: Path) -> None:
    rows = load_data(data)
    counts = np.bincount(np.concatenate([row["ids"] for row in rows]), minlength=SIZE)
    vocabulary = CutVocabulary.of_frequent(rows, KEPT, SIZE)
    cut = vocabulary.cut(torch.arange(SIZE))
    others = cut == KEPT - 1
    assert int(others.sum()) == SIZE - (KEPT - 1)
    assert counts[others.numpy()].max() <= counts[~others.numpy()].min()
    assert sorted(cut[~others].tolist()) == list(range(KEPT - 1))
    likely, logprobs = vocabulary.cut_labels(torch.arange(SIZE)[None], torch.zeros(1, SIZE))
    assert torch.equal(logprobs[0].isfinite(), ~others)
    assert torch.equal(likely[0], cut)
    embedding = torch.randn(SIZE + PADDING, 4)
    rows_of_cut = vocabulary.contract(embedding)
    assert torch.equal(rows_of_cut[:-1], embedding[vocabulary.kept])
    again = vocabulary.expand({"lm_head.weight": rows_of_cut, "model.norm.weight": embedding[0]})
    assert torch.equal(again["lm_head.weight"][vocabulary.kept], embedding[vocabulary.kept])
    assert torch.equal(again["model.norm.weight"], embedding[0])


def test_a_draft_with_a_cut_vocabulary_learns_from_labels_and_has_the_whole_one_for_vllm(
    labelled: Path, preset: Preset, tmp_path: Path
) -> None:
    long = replace(preset, num_tokens=30 * preset.batch_tokens)
    train(long, labelled, tmp_path / "run", Lineage(mix=1.0), vocabulary=KEPT, log_steps=1)
    steps = steps_of(tmp_path / "run")
    assert steps[-1]["divergence"] < steps[0]["divergence"] * 0.8
    folder, whole = tmp_path / "run" / "model", read_manifest(labelled)["vocab_size"]
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == whole
    model, vocabulary = load_model(folder), CutVocabulary.of_model(folder, whole)
    assert vocabulary is not None
    cut = make_model(replace(preset.shape, vocab_size=KEPT), 1)
    weights = {
        name: vocabulary.contract(each) if name in EMBEDDINGS else each for name, each in model.state_dict().items()
    }
    cut.load_state_dict(weights)
    ids = torch.tensor(vocabulary.kept[:60])[None]
    with torch.no_grad():
        ours, theirs = model(input_ids=ids).logits, cut(input_ids=vocabulary.cut(ids)).logits
    assert torch.equal(vocabulary.cut(ours.argmax(-1)), theirs.argmax(-1)), "the same most likely tokens"
    assert "tells 200 tokens apart" in (folder / "README.md").read_text()
    refused = CliRunner().invoke(held_out, ["--model", str(folder)])
    assert "has a cut vocabulary: it drafts, and its probabilities say nothing" in refused.stderr


def test_a_draft_goes_on_with_the_vocabulary_of_the_one_it_starts_from_whatever_its_data_has(
    data: Path, target: Path, preset: Preset, tmp_path: Path
) -> None:
    train(replace(preset, num_tokens=20 * preset.batch_tokens), data, tmp_path / "text", vocabulary=KEPT, log_steps=1)
    label(target, data, tmp_path / "half", 2048)
    start = Lineage(start_from=tmp_path / "text" / "model")
    train(replace(preset, num_tokens=preset.batch_tokens), tmp_path / "half", tmp_path / "run", start, log_steps=1)
    (first, *_), last = steps_of(tmp_path / "run"), steps_of(tmp_path / "text")[-1]
    assert first["text_loss"] == pytest.approx(last["text_loss"], abs=0.3)
    ours, theirs = (json.loads((tmp_path / name / "model" / KEPT_FILE).read_text()) for name in ("run", "text"))
    assert ours == theirs != CutVocabulary.of_frequent(load_data(tmp_path / "half"), KEPT, SIZE).kept
    assert load_model(tmp_path / "run" / "model").vocab_size == read_manifest(data)["vocab_size"] + PADDING
    with pytest.raises(PipelineError, match="tells 200 tokens apart, not the 100 asked for"):
        train(preset, data, tmp_path / "other", start, vocabulary=100)


def test_sources_that_do_not_go_together_are_refused(
    data: Path, labelled: Path, target: Path, preset: Preset, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(PipelineError, match="a teacher has the whole one"):
        train(preset, data, out, Lineage(teacher=target), vocabulary=KEPT)
    with pytest.raises(PipelineError, match="learn from one of them"):
        train(preset, labelled, out, Lineage(teacher=target))
    with pytest.raises(PipelineError, match=r"a vocabulary of 328 tokens can't be cut from one of 328"):
        train(preset, labelled, out, vocabulary=SIZE + PADDING)
    train(preset, labelled, out, vocabulary=KEPT)
    with pytest.raises(PipelineError, match="other data, another shape or settings"):
        train(preset, labelled, out, vocabulary=KEPT + 1)
