"""Converted folders of T5's family against the `transformers` library, and errors of one line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dragoman
import t5_folders
from damaged_sources import change_json, check_refusal
from dragoman.bundle import load_bundle
from dragoman.positions import relative_position_buckets
from generation_parity import Peer, map_ids
from odd_texts import PLAIN

transformers: Any = pytest.importorskip("transformers", reason="parity with T5 needs transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
PREFIX = "translate English to German: "
TASKS = {"task_specific_params": {"translation_en_to_de": {"prefix": PREFIX}}}


@pytest.fixture(scope="module", params=t5_folders.VARIANTS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """A model whose sources begin with a task, or with a language token of MADLAD."""
    folder, variant = tmp_path_factory.mktemp("peer"), request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, tokenizer = t5_folders.write_folder(folder / "source", variant, with_json=variant == "mt5")
    change_json(folder / "source" / "config.json", lambda document: document.update(TASKS))
    dragoman.convert(folder / "source", folder / "bundle", source_language="en", target_language="de")
    translator = dragoman.load(folder / "bundle", task="translation", device="cpu", precision="float32")
    prefix = "<2de> " if variant == "madlad" else PREFIX
    names = tokenizer.convert_ids_to_tokens(list(range(model.config.vocab_size)))
    vocabulary = translator.bundle.tokenizer.target
    start, padding, end = model.config.decoder_start_token_id, model.config.pad_token_id, model.config.eos_token_id
    special = {padding: 0, end: 3, tokenizer.unk_token_id: 1} | ({start: 2} if start == padding else {})
    ordinary = iter(range(4, len(vocabulary)))
    ids = [special[index] if index in special else next(ordinary) for index in range(len(names))]
    assert map_ids(vocabulary.piece_to_id, [vocabulary.ids_to_pieces([index])[0] for index in ids[3:]]) == ids[3:]
    return Peer(model, translator, lambda line: list(tokenizer(prefix + line)["input_ids"]), ids, ids, [*{padding, start}])


def test_source_tokens_are_equal(peer: Peer) -> None:
    """The task or the language token comes first, the odd spaces divide words, and the tokens for gaps stay whole.

    MADLAD has none of these tokens, and transformers 5 gives its unknown characters the id of the end token.
    """
    tokenizer = peer.translator.bundle.tokenizer
    for line in [*PLAIN, " two  spaces\u3000here ", *(["a <extra_id_3> b", "café"] if len(peer.silent_ids) == 1 else [])]:
        assert tokenizer.encode_source(line) == [peer.source_ids[index] for index in peer.encode(line)], line


def test_logits_are_equal(peer: Peer) -> None:
    """Logits of T5 are large, so the tolerance is 1e-4; long sources have distances in the last bucket."""
    source_ids, chance = torch.tensor(peer.source_ids), torch.Generator().manual_seed(1)
    start = peer.model.config.decoder_start_token_id
    for line in (*PLAIN, " ".join(PLAIN)):
        source = torch.tensor([peer.encode(line)])
        targets = torch.randint(4, 60, (1, 40), generator=chance)
        with torch.no_grad():
            inputs = torch.cat([torch.tensor([[start]]), targets], dim=1)
            expected = peer.model(input_ids=source, decoder_input_ids=inputs, use_cache=False).logits
            own_inputs = torch.cat([torch.tensor([[2]]), source_ids[targets]], dim=1)
            logits = peer.translator.bundle.model(source_ids[source], own_inputs)
        torch.testing.assert_close(logits[:, :, source_ids], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("search", ["greedy", pytest.param("beam", marks=pytest.mark.slow)])
def test_outputs_are_equal(search: str, peer: Peer) -> None:
    assert peer.check_outputs([*PLAIN, *" ".join(PLAIN).split()], search) >= 5


def test_buckets_are_those_of_transformers() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-300, 301)
    for bidirectional in (True, False):
        for num_buckets, max_distance in ((32, 128), (8, 20), (64, 256)):
            bucket_of: Any = T5Attention._relative_position_bucket
            expected = bucket_of(distances, bidirectional, num_buckets, max_distance)
            buckets = relative_position_buckets(
                distances.numpy(), num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional
            )
            assert buckets.tolist() == expected.tolist()


def test_damaged_folders_give_one_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each change of a folder is refused with the setting or the tensor that is wrong."""
    t5_folders.write_folder(tmp_path / "source")
    weights = load_file(tmp_path / "source" / "model.safetensors")
    config = (tmp_path / "source" / "config.json").read_text(encoding="utf-8")
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    cases: tuple[tuple[dict[str, Any], dict[str, Any], str, str], ...] = (
        ({"feed_forward_proj": "gated-relu"}, {}, "conversion-unsupported", "feed_forward_proj"),
        ({"feed_forward_proj": ["relu"]}, {}, "conversion-unsupported", "feed_forward_proj"),
        ({"dropout_rate": 10**400}, {}, "source-damaged", "dropout_rate"),
        ({"d_kv": 10**400}, {}, "source-damaged", "d_kv"),
        ({"is_encoder_decoder": False}, {}, "conversion-unsupported", "is_encoder_decoder"),
        ({"decoder_start_token_id": 7}, {}, "conversion-unsupported", "decoder_start_token_id"),
        ({"eos_token_id": 0}, {}, "source-damaged", "eos_token_id"),
        ({"relative_attention_max_distance": 2}, {}, "source-damaged", "relative_attention_max_distance"),
        ({"relative_attention_num_buckets": 12}, {}, "source-damaged", "relative_positions"),
        ({"prefix": "x" * 2000}, {}, "source-damaged", "prefix"),
        ({}, {"shared.weight": torch.full_like(weights["shared.weight"], torch.nan)}, "source-damaged", "finite"),
        ({}, {"encoder.block.9.x": torch.ones(1)}, "conversion-unsupported", "encoder.block.9.x"),
        ({}, {bias: weights[bias][:, :2].clone()}, "source-damaged", "relative_positions"),
    )
    for settings, tensors, code, words in cases:
        with subtests.test(settings=str(settings)[:60], tensors=list(tensors)):
            (tmp_path / "source" / "config.json").write_text(config, encoding="utf-8")
            change_json(tmp_path / "source" / "config.json", **settings)
            save_file(weights | tensors, tmp_path / "source" / "model.safetensors")
            check_refusal(tmp_path / "source", code, words)


def test_bundle_has_the_family(tmp_path: Path) -> None:
    t5_folders.write_folder(tmp_path / "source", "madlad")
    origin = dragoman.convert(tmp_path / "source", tmp_path / "bundle", target_language="fr").origin
    assert (origin.format, origin.target_languages) == ("huggingface-t5", list(t5_folders.LANGUAGES))
    recipe = load_bundle(tmp_path / "bundle").recipe
    assert (recipe.tokenizer.language_token, recipe.task.target_language) == ("<2{}>", "fr")
    assert (recipe.model.norm_type, recipe.model.position_encoding) == ("rms", "relative")
