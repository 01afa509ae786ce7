"""Students with seeded weights, which dragoman and fxtranslate, a program in Rust, translate alike.

`python tests/conversion/test_student_engines.py SHAPE LINES` prints the numbers of equal, clear and different lines.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from test_marian_binary import SIZE, quantize, write_binary, write_shortlist

import dragoman
from dragoman.bundle import Bundle, load_bundle
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.inference.translation_result import Translation
from marian_folders import SOURCE_LETTERS, make_lines
from marian_npz_folders import SSRU_SETTINGS, make_settings, train_vocabulary

SHAPES = {"tiny": (6, 2, 256, 1536), "base-memory": (6, 4, 384, 1536), "base": (6, 2, 512, 2048)}
"""Encoder layers, decoder layers, d_model and d_ff of Firefox's students."""
NUM_PIECES, NEVER = 100, -100.0
STEP_GAIN, CONTEXT_GAIN = 20.0, 1.3
"""The second makes the source decide the first token. The first makes each token decide the next one, by a large margin."""
MIN_MARGIN = 0.1
"""Smallest difference of logits that rounding to int8 does not turn around."""


def draw_arrays(shape: str, seed: int) -> dict[str, Any]:
    """Return weights under Marian's names. The SSRU of the first layer maps each token to a token before it, down to </s>."""
    encoder_layers, decoder_layers, d_model, d_ff = SHAPES[shape]
    rng, arrays = np.random.default_rng(seed), dict[str, Any]()

    def draw(num_inputs: int, num_outputs: int, gain: float = 1.0) -> Any:
        return (rng.standard_normal((num_inputs, num_outputs)) * gain / np.sqrt(num_inputs)).astype(np.float32)

    def add_norm(name: str) -> None:
        arrays[f"{name}_ln_scale"] = 1 + draw(1, d_model, 0.1)
        arrays[f"{name}_ln_bias"] = draw(1, d_model, 0.1)

    def add_attention(name: str, gain: float, score_gain: float) -> None:
        for part in "qkvo":
            arrays[f"{name}_W{part}"] = draw(d_model, d_model, score_gain if part in "qk" else gain)
            arrays[f"{name}_b{part}"] = draw(1, d_model, 0.1)
        add_norm(f"{name}_Wo")

    def add_feed_forward(name: str) -> None:
        arrays[f"{name}_ffn_W1"], arrays[f"{name}_ffn_b1"] = draw(d_model, d_ff, 0.3), draw(1, d_ff, 0.1)
        arrays[f"{name}_ffn_W2"], arrays[f"{name}_ffn_b2"] = draw(d_ff, d_model, 0.5), draw(1, d_model, 0.1)
        add_norm(f"{name}_ffn_ffn")

    table = draw(SIZE, d_model) * np.float32(np.sqrt(SIZE / d_model))
    table[:, d_model // 2 :] -= table[:, d_model // 2 :].mean(1, keepdims=True)  # the first position is no token
    next_tokens = [0, 0, *(int(rng.integers(max(1, token - 12), token)) for token in range(2, SIZE))]
    next_tokens = [0 if token == 1 else token for token in next_tokens]
    bias = np.zeros((1, SIZE), np.float32)
    bias[0, [1, *range(NUM_PIECES, SIZE)]] = NEVER
    arrays |= {"Wemb": table, "decoder_ff_logit_out_b": bias}
    for layer in range(1, encoder_layers + 1):
        add_attention(f"encoder_l{layer}_self", 0.3, 1.0)
        add_feed_forward(f"encoder_l{layer}")
    for layer in range(1, decoder_layers + 1):
        name = f"decoder_l{layer}"
        is_first = layer == 1
        arrays[f"{name}_rnn_W"] = STEP_GAIN * table.T @ table[next_tokens] if is_first else draw(d_model, d_model, 0.2)
        arrays[f"{name}_rnn_Wf"], arrays[f"{name}_rnn_bf"] = draw(d_model, d_model, 0.2), draw(1, d_model, 0.1) - 3
        add_norm(f"{name}_rnn_ffn")
        add_attention(f"{name}_context", CONTEXT_GAIN if is_first else 0.3, 2.0)
        add_feed_forward(name)
    return arrays


def write_student(folder: Path, shape: str, seed: int) -> Path:
    """Write a student in int8, as Firefox distributes it, and return its folder."""
    encoder_layers, decoder_layers, d_model, d_ff = SHAPES[shape]
    arrays = quantize(draw_arrays(shape, seed))
    for name in [name for name in arrays if name.endswith("_QuantMultA")]:
        arrays[name] = np.array([[25.4]], np.float32)
    arrays["none_QuantMultA"] = arrays["Wemb_QuantMultA"]
    settings = make_settings(
        **SSRU_SETTINGS,
        **{"dim-vocabs": [SIZE, SIZE], "dim-emb": d_model, "transformer-dim-ffn": d_ff, "transformer-heads": 8},
        **{"enc-depth": encoder_layers, "dec-depth": decoder_layers, "transformer-ffn-activation": "relu"},
    )
    folder.mkdir()
    write_binary(folder / "model.ende.intgemm.alphas.bin", arrays, settings)
    write_shortlist(folder / "lex.50.50.ende.s2t.bin")
    (folder / "vocab.ende.spm").write_bytes(train_vocabulary())
    return folder


def compute_margin(bundle: Bundle, line: str, translation: Translation) -> float:
    """Return by how much the logit of each token is above all others, in float32, at the least."""
    source_ids = bundle.tokenizer.encode_source(line)
    target_ids = [*map(bundle.tokenizer.target.piece_to_id, translation.tokens), END_ID]
    with torch.no_grad():
        logits_TV = bundle.model(torch.tensor([source_ids]), torch.tensor([[0, *target_ids[:-1]]]))[0]
    chosen_T = logits_TV.gather(1, torch.tensor(target_ids)[:, None])
    others_TV = logits_TV.scatter(1, torch.tensor(target_ids)[:, None], -torch.inf)
    return float((chosen_T - others_TV.max(1, keepdim=True).values).min())


def compare(folder: Path, shape: str, num_lines: int) -> tuple[int, int, int]:
    """Return the equal lines, the lines of which rounding decides no token, and their different translations."""
    fxtranslate = pytest.importorskip("fxtranslate", reason="fxtranslate, the program to compare with, is not installed")
    source = write_student(folder / shape, shape, seed=1)
    dragoman.convert(source, folder / f"{shape}-bundle")
    bundle = load_bundle(folder / f"{shape}-bundle")
    lines = list(make_lines(SOURCE_LETTERS, num_lines, 9))
    translations = dragoman.load(folder / f"{shape}-bundle", task="translation", device="cpu").translate(lines)
    vocabulary = (source / "vocab.ende.spm").read_bytes()
    other = fxtranslate.Translator((source / "model.ende.intgemm.alphas.bin").read_bytes(), vocabulary, vocabulary)
    kept = [pair for pair in zip(lines, translations, strict=True) if compute_margin(bundle, *pair) > MIN_MARGIN]
    num_equal = sum(other.translate(line).split() == translation.text.split() for line, translation in kept)
    return num_equal, len(kept), len({translation.text for _, translation in kept})


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_seeded_students_translate_as_in_fxtranslate(tmp_path: Path, shape: str) -> None:
    num_equal, num_lines, num_different = compare(tmp_path, shape, 100)
    assert num_equal >= 0.97 * num_lines
    assert num_lines > 20
    assert num_different > 2


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        print(sys.argv[1], *compare(Path(name), sys.argv[1], int(sys.argv[2])))
