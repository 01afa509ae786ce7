"""Front ends of arrays: shapes, gradients, masks, files, and a run that learns to tell two sounds and two pictures apart."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from torch import Tensor

import dragoman
from attention_page_reader import Page
from dragoman.bundle import save_bundle
from dragoman.cli.main import cli
from dragoman.config import DecodingConfig, ModelConfig, Recipe, make_recipe
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS, ByteScheme
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.decoding.interface import StepFn
from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.experiments.frontends.array_text import FIRST_ID, NUM_LEVELS, write_array_text
from dragoman.experiments.frontends.draw import LineDrawer
from dragoman.experiments.frontends.model import ConvolutionFrontend, draw_mask
from dragoman.experiments.frontends.options import FrontendOptions
from dragoman.inference.explain.explain_translation import explain
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.model.weights import collect_weights
from dragoman.tasks.forced_decoding import compute_cross_attentions
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.torch_engine.inference_model import as_inference_model

pytestmark = pytest.mark.usefixtures("one_core")

WIDTH = 8
SIZES: dict[str, Any] = {
    "array_frontend": "sound", "frame_width": WIDTH, "append_source_eos": False,
    "max_masked_frames": 0.4, "max_masked_bands": 3, "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32,
    "num_heads": 2, "residual_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip


def make_config(**changes: Any) -> ModelConfig:
    return ModelConfig.model_validate(SIZES | changes)


def read_array_text(path: Path, config: ModelConfig, *, speed: float = 1.0) -> str:
    return config.get_extension(FrontendOptions).read_file(path, speed=speed)


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    return build_model(make_config(), source_vocab_size=260, target_vocab_size=260).eval()


def test_first_vectors_of_pictures_have_a_variance_of_one() -> None:
    """Pixels of a standard deviation of 0.25, as lines of text have them, are not hidden by the positions."""
    torch.manual_seed(0)
    config = make_config(array_frontend="picture", frame_width=32, max_masked_bands=0, max_masked_frames=0.0, d_model=64)
    frontend = get_frontend(build_model(config, source_vocab_size=260, target_vocab_size=260).eval())
    pixels_BTF = (0.25 * torch.randn(4, 100, 32)).clamp(-1, 1)
    source_BS = FIRST_ID + ((pixels_BTF + 1) * ((NUM_LEVELS - 1) / 2)).round().long().flatten(1)
    assert 0.5 < frontend.embed(source_BS).var().item() < 2.0


def make_sources(*num_frames: int) -> Tensor:
    """Return random arrays as ids, padded on the right."""
    source_BS = torch.randint(FIRST_ID, FIRST_ID + NUM_LEVELS, (len(num_frames), max(num_frames) * WIDTH))
    for row, frames in enumerate(num_frames):
        source_BS[row, frames * WIDTH :] = 0
    return source_BS


def get_frontend(model: Transformer) -> ConvolutionFrontend:
    assert isinstance(model.encoder.frontend, ConvolutionFrontend)
    return model.encoder.frontend


def test_text_of_array_keeps_its_numbers(model: Transformer) -> None:
    frames_TF = np.linspace(-4, 4, 3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
    text = write_array_text(np.concatenate([frames_TF, frames_TF * 100]), 4.0)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    ids_1S = torch.tensor([[byte + 4 for byte in text.encode()]])  # the four special tokens are before the bytes
    restored_1TF, lengths_1 = get_frontend(model).read_arrays(ids_1S)
    assert lengths_1.tolist() == [6]
    step = 8 / (NUM_LEVELS - 1)
    np.testing.assert_allclose(restored_1TF[0, :3], frames_TF, atol=step / 2 + 1e-6)
    np.testing.assert_allclose(restored_1TF[0, 3:], np.clip(frames_TF * 100, -4, 4), atol=step / 2 + 1e-6)


@pytest.mark.parametrize("num_frames", [1, 4, 5, 37])
def test_vectors_are_a_quarter_of_the_frames(model: Transformer, num_frames: int) -> None:
    source_BS = make_sources(num_frames, 1)
    assert model.encoder(source_BS).shape == (2, math.ceil(num_frames / 4), 16)
    assert get_frontend(model).find_inputs(source_BS).sum(dim=1).tolist() == [math.ceil(num_frames / 4), 1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position_encoding": "relative"},
        {"position_encoding": "rotary"},
        {"attention_window": 3},
        {"encoder_mixer": "convolution"},
    ],
)
def test_padding_does_not_change_the_logits(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = build_model(make_config(**changes), source_vocab_size=260, target_vocab_size=260).eval()
    source_BS, inputs_BT = make_sources(37, 21, 3), torch.tensor([[2, 50], [2, 51], [2, 52]])
    together = model(source_BS, inputs_BT)
    for row, frames in enumerate((37, 21, 3)):
        alone = model(source_BS[row : row + 1, : frames * WIDTH], inputs_BT[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=1e-5)


def test_vectors_equal_convolutions_by_hand(model: Transformer) -> None:
    frontend = get_frontend(model)
    source_BS = make_sources(9)
    x = (source_BS.view(9, WIDTH) - FIRST_ID) * (2 * 4.0 / 93) - 4.0
    for convolution in (frontend.first, frontend.second):
        x, bias = x.view(-1, *x.shape[-2:]), convolution.bias
        assert bias is not None
        padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
        rows, columns = (x.shape[1] + 1) // 2, (x.shape[2] + 1) // 2
        out = torch.empty(32, rows, columns)
        for row in range(rows):
            for column in range(columns):
                window = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
                out[:, row, column] = (convolution.weight * window).sum((1, 2, 3)) + bias
        x = torch.nn.functional.gelu(out)
    expected = x.transpose(0, 1).flatten(1) @ frontend.linear.weight.T + frontend.linear.bias
    torch.testing.assert_close(frontend.embed(source_BS)[0], expected, atol=1e-5, rtol=1e-5)


def test_all_weights_of_front_end_have_gradients(model: Transformer) -> None:
    model.train()
    model(make_sources(20, 12), torch.tensor([[2, 50], [2, 51]])).square().sum().backward()
    gradients = {name: weight.grad for name, weight in get_frontend(model).named_parameters()}
    model.zero_grad()
    model.eval()
    assert {"first.weight", "second.weight", "linear.weight"} <= gradients.keys()
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())


def test_masks_cover_one_part_of_each_row() -> None:
    torch.manual_seed(0)
    lengths_B = torch.tensor([40, 10]).repeat(2000)
    mask_BT = draw_mask(lengths_B * 0.25, lengths_B, 40)
    sizes_B = (~mask_BT).sum(dim=1)
    # ⌊U(0, n + 1)⌋ of n = 10 and 2.5 masked frames has the means 5, and (1 · 1 + 2 · 1 + 3 · 0.5) / 3.5.
    assert sizes_B[::2].max() == 10
    assert abs(sizes_B[::2].float().mean() - 5) < 0.3
    assert abs(sizes_B[1::2].float().mean() - 4.5 / 3.5) < 0.15
    num_edges_B = (mask_BT[:, 1:] != mask_BT[:, :-1]).sum(dim=1) + (~mask_BT[:, 0]).int()
    assert num_edges_B.max() <= 2
    assert mask_BT[1::2, 10:].all()


def test_output_has_at_most_a_token_for_each_vector(model: Transformer) -> None:
    """The source has 40 frames of 8 numbers, and so 10 vectors. A model that never ends an output fills them."""
    never_ends = replace(model_steps := as_inference_model([model]), step=make_endless(model_steps.step))
    config = DecodingConfig(method="greedy", max_extra_tokens=2, max_source_tokens=2000)
    search = BatchSearch(never_ends, config, start_id=BEGIN_ID)
    [[hypothesis]] = generate(search, [make_sources(40)[0].tolist()])
    assert len(hypothesis.tokens) == 40 // 4 + 2


def make_endless(step: StepFn) -> StepFn:
    """Return a step whose end token has no probability."""

    def endless(tokens_N: Any, state: Any) -> Any:
        logits_NV, state = step(tokens_N, state)
        logits_NV[:, END_ID] = -math.inf
        return logits_NV, state

    return endless


def test_masks_are_for_training_alone(model: Transformer) -> None:
    source_BS = make_sources(40)
    assert torch.equal(model.encoder(source_BS), model.encoder(source_BS))
    model.train()
    assert not torch.equal(model.encoder(source_BS), model.encoder(source_BS))
    model.eval()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"array_frontend": "none"}, "is for array_frontend = 'sound' or 'picture'"),
        ({"append_source_eos": True}, "an array has no end token"),
        ({"max_masked_bands": 5}, "more than half of frame_width"),
    ],
)
def test_impossible_keys_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_config(**changes)


def write_wav(path: Path, samples_N: NDArray[np.float64], rate: int = 16_000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples_N * 32_767).astype("<i2").tobytes())


def write_examples(folder: Path, frontend: str) -> None:
    """Write ten low and ten high tones with noise, or ten pictures with a horizontal and ten with a vertical bar."""
    rng = np.random.default_rng(0)
    lines = []
    for index in range(20):
        word = ("low", "high")[index % 2]
        if frontend == "sound":
            hertz = (300, 3000)[index % 2] * rng.uniform(0.8, 1.25)
            samples_N = 0.5 * np.sin(2 * np.pi * hertz * np.arange(4800) / 16_000) + 0.02 * rng.standard_normal(4800)
            write_wav(folder / f"{index}.wav", samples_N.clip(-1, 1))
        else:
            from PIL import Image

            pixels = np.full((16, 40), 255, np.uint8)
            start = rng.integers(2, 10)
            pixels[(slice(start, start + 4), slice(None))[:: 1 if index % 2 else -1]] = 0
            Image.fromarray(pixels).save(folder / f"{index}.png")
        lines.append(f"{index}.{'wav' if frontend == 'sound' else 'png'}\t{word}\n")
    (folder / "all.list").write_text("".join(lines), encoding="utf-8")


def make_tiny_recipe(folder: Path, frontend: str, **changes: Any) -> Recipe:
    document: dict[str, Any] = {
        "name": "tiny",
        "run": str(folder / "run"),
        "preset": "modern",
        "size": "tiny",
        "task": {"source_language": "en", "target_language": "en"},
        "data": {"root": str(folder), "max_length": 2000} | {key: {"file": "all.tsv"} for key in ("train", "valid", "test")},
        "tokenizer": {"model_type": "byte", "normalization": "identity", "reserved_tokens": 0},
        "model": SIZES | {"array_frontend": frontend},
        "training": {
            "precision": "float32", "batch_tokens": 2000, "max_steps": 150, "schedule": "constant", "peak_lr": 2e-3,
            "warmup_steps": 5, "validate_every_steps": 150, "num_validation_translations": 0, "checkpoint_every_steps": 150,
            "log_every_steps": 20, "checkpoint_averaging": "none",
        },
        "decoding": {"method": "greedy", "max_source_tokens": 2000, "max_extra_tokens": 0, "min_length_ratio": 0.0},
    }  # fmt: skip
    return make_recipe(document | changes)


def test_rotary_positions_and_ctc_fit_to_a_front_end(tmp_path: Path) -> None:
    model = SIZES | {"position_encoding": "rotary", "decoder": "ctc", "attention_window": 3}
    training = {"schedule": "constant", "peak_lr": 1e-3, "label_smoothing": 0.0}
    recipe = make_tiny_recipe(tmp_path, "sound", model=model, training=training, decoding={"method": "greedy"})
    assert recipe.model.find_later_layers() == {"position_encoding": "rotary"}
    text = ModelConfig.model_validate({"position_encoding": "rotary", "decoder": "ctc"})
    assert text.find_torch_layers() == ["model.decoder = 'ctc'"]  # no kernel of this decoder has rotary positions
    with pytest.raises(RecipeError, match=r"or model\.encoder_mixer"):
        make_tiny_recipe(tmp_path, "sound", model=SIZES | {"position_encoding": "rotary", "encoder_mixer": "convolution"})
    with pytest.raises(ValueError, match="frontend = 'log-mel'"):
        make_config(frontend="log-mel", position_encoding="learned", tie_embeddings="decoder")


def test_read_refuses_a_sound_beyond_the_limit(sound_bundle: str, tmp_path: Path) -> None:
    """A part of an array would begin in the middle of a frame. The limit is 2,000 numbers, or 250 frames of 10 ms."""
    pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'dragoman[speech]'")
    pytest.importorskip("soxr", reason="soxr is not installed: pip install 'dragoman[speech]'")
    write_wav(tmp_path / "long.wav", np.sin(np.arange(251 * 160)))
    result = CliRunner().invoke(cli, ["read", sound_bundle, str(tmp_path / "long.wav")])
    assert isinstance(result.exception, DataError)
    assert str(result.exception) == (
        f"{tmp_path / 'long.wav'}: has 2008 numbers, and decoding.max_source_tokens of the recipe is 2000; "
        "cut it into shorter files"
    )


@pytest.mark.slow
@pytest.mark.parametrize("frontend", ["sound", "picture"])
def test_training_tells_two_classes_apart(frontend: str, tmp_path: Path) -> None:
    for library in ("soundfile", "soxr") if frontend == "sound" else ("PIL",):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'dragoman[speech,pictures]'")
    write_examples(tmp_path, frontend)
    recipe = make_tiny_recipe(tmp_path, frontend)
    runner = CliRunner()
    keys = [f"model.{key}={SIZES[key]}" for key in ("frame_width", "max_masked_bands")]
    arguments = ["read-arrays", "speech-digits", str(tmp_path / "all.list"), *keys, f"model.array_frontend={frontend}"]
    result = runner.invoke(cli, [*arguments, "-o", str(tmp_path / "all.tsv")])
    assert result.exit_code == 0, result.output
    report = dragoman.train(recipe)
    assert report["exact_match"] == 100.0
    suffix = "wav" if frontend == "sound" else "png"
    files = [str(tmp_path / f"{index}.{suffix}") for index in (3, 4)]
    result = runner.invoke(cli, ["read", str(tmp_path / "run" / "bundle"), *files])
    assert result.output.splitlines() == ["high", "low"]
    as_json = runner.invoke(cli, ["read", str(tmp_path / "run" / "bundle"), files[0], "--json"])
    document = json.loads(as_json.output)
    assert (document["file"], document["text"]) == (files[0], "high")
    assert document["score"] < 0


def test_speed_changes_length_and_pitch(tmp_path: Path) -> None:
    pytest.importorskip("soxr", reason="soxr is not installed: pip install 'dragoman[speech]'")
    pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'dragoman[speech]'")
    write_wav(tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000))
    config = make_config(frame_width=40, max_masked_bands=0)
    frames = {
        speed: np.frombuffer(read_array_text(tmp_path / "a.wav", config, speed=speed).encode(), np.uint8).reshape(-1, 40)
        for speed in (0.8, 1.0, 1.25)
    }
    assert [len(frames_TF) for frames_TF in frames.values()] == [125, 100, 80]
    assert frames[0.8][50].argmax() < frames[1.0][50].argmax() < frames[1.25][50].argmax()


def test_pictures_become_columns_of_darkness(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'dragoman[pictures]'")
    pixels = np.full((WIDTH, 12), 255, np.uint8)
    pixels[:, 3] = 0
    image.fromarray(pixels).save(tmp_path / "a.png")
    text = read_array_text(tmp_path / "a.png", make_config(array_frontend="picture"))
    columns = [text[start : start + WIDTH] for start in range(0, len(text), WIDTH)]
    white, black = chr(ord("!") + round(93 / 2)), "~"  # 0 and 1 on the scale of 94 levels from −1 to 1
    assert columns == [(black if column == 3 else white) * WIDTH for column in range(12)]
    image.new("RGBA", (24, 16)).save(tmp_path / "clear.png")  # transparent is white
    assert set(read_array_text(tmp_path / "clear.png", make_config(array_frontend="picture"))) == {white}


def write_bomb(path: Path) -> None:
    """Write the header of a PNG of 30,000 × 30,000 pixels."""
    import zlib

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def test_model_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="use dragoman translate"):
        read_array_text(tmp_path / "a.wav", ModelConfig())


def test_recipe_needs_tokens_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="set it to 'byte'"):
        make_tiny_recipe(tmp_path, "sound", tokenizer={"model_type": "char"})


def find_font() -> Path:
    """Return the file of a font of the system."""
    fonts = [*Path("/usr/share/fonts").rglob("DejaVuSans.ttf"), *Path("/usr/share/fonts").rglob("*.ttf")]
    if not fonts:
        pytest.skip("no font is installed: apt install fonts-dejavu-core")
    return fonts[0]


def test_lines_are_drawn_with_their_list(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'dragoman[pictures]'")
    (tmp_path / "texts").write_text("A cat\nA longer line\n", encoding="utf-8")
    (tmp_path / "fonts").write_text(f"{find_font()}\n", encoding="utf-8")
    arguments = ["draw-lines", str(tmp_path / "texts"), str(tmp_path / "fonts"), "--json", "-o"]
    pixels = {}
    for folder, options in (("plain", []), ("same", []), ("other", ["--seed", "2"]), ("bent", ["--distortion", "1"])):
        result = CliRunner().invoke(cli, [*arguments, str(tmp_path / folder), *options])
        assert json.loads(result.output) == {"output": str(tmp_path / folder), "lines": 2}
        assert (tmp_path / folder / "all.list").read_text(encoding="utf-8") == "1.png\tA cat\n2.png\tA longer line\n"
        pixels[folder] = [np.asarray(image.open(tmp_path / folder / f"{number}.png")) for number in (1, 2)]
    plain, bent = pixels["plain"][1], pixels["bent"][1]
    assert np.array_equal(plain, pixels["same"][1])
    assert plain.shape != pixels["other"][1].shape
    assert plain.shape[1] > pixels["plain"][0].shape[1]
    assert (plain.max(), plain.min()) == (255, 0)
    assert (plain[[0, -1]] == 255).all()  # a margin is above and below the line
    assert len(np.unique(bent)) > len(np.unique(plain))  # noise
    assert read_array_text(tmp_path / "bent" / "2.png", make_config(array_frontend="picture"))


def test_bad_fonts_and_texts_give_one_line(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'dragoman[pictures]'")
    (tmp_path / "text.ttf").write_text("no font")
    rng = np.random.default_rng(0)
    for fonts, text, problem in (
        ([], "a", "fonts: there are none"),
        ([tmp_path / "text.ttf"], "a", "not a font"),
        ([find_font()], " ", "a line is blank"),
        ([find_font()], "a\U0010ffff", "the font lacks"),
    ):
        with pytest.raises(DataError, match=problem) as caught:
            LineDrawer(fonts).draw(text, rng)
        assert "\n" not in str(caught.value)


# The page that shows the attention


def write_random_bundle(folder: Path, frontend: str) -> str:
    """Write a bundle with random weights."""
    recipe = make_tiny_recipe(folder, frontend)
    vocabulary = TokenListTokenizer(ByteScheme(), BYTE_TOKENS)
    tokenizer = PairTokenizer(vocabulary, vocabulary, append_source_eos=False)
    torch.manual_seed(0)
    model = build_model(recipe.model, source_vocab_size=len(vocabulary), target_vocab_size=len(vocabulary))
    save_bundle(folder / "bundle", recipe=recipe, tokenizer=tokenizer, weights=collect_weights(model), metadata={})
    return str(folder / "bundle")


@pytest.fixture(scope="module")
def picture_bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_random_bundle(tmp_path_factory.mktemp("picture"), "picture")


@pytest.fixture(scope="module")
def sound_bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_random_bundle(tmp_path_factory.mktemp("sound"), "sound")


def explain_file(bundle: str, file: Path) -> tuple[Page, dict[str, Any]]:
    """Return the page and the numbers of `dragoman explain`."""
    page_path = file.parent / "page.html"
    result = CliRunner().invoke(cli, ["explain", bundle, str(file), "--target", "ab", "-o", str(page_path), "--json"])
    assert result.exit_code == 0, result.output
    return Page(page_path.read_text(encoding="utf-8")), json.loads(result.output)


def get_image_rows(page: Page) -> NDArray[np.uint8]:
    """Return the darkness of the pixels of the source on a page."""
    [attributes] = [attributes for tag, attributes in page.tags if tag == "image"]
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'dragoman[pictures]'")
    png = base64.b64decode((attributes["href"] or "").split(",")[1])
    return 255 - np.asarray(image.open(io.BytesIO(png)).convert("L"))


def test_page_shows_attention_over_the_picture(picture_bundle: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'dragoman[pictures]'")
    pixels = np.full((WIDTH, 22), 255, np.uint8)
    pixels[2, 3] = 0
    image.fromarray(pixels).save(tmp_path / "a.png")
    page, numbers = explain_file(picture_bundle, tmp_path / "a.png")
    assert numbers["source"] == str(tmp_path / "a.png")
    assert numbers["source_tokens"] == ["0 px", "4 px", "8 px", "12 px", "16 px", "20 px"]  # ⌈22 / 4⌉ vectors
    assert np.shape(numbers["attention"]["cross"]) == (1, 2, 3, 6)
    np.testing.assert_allclose(np.sum(numbers["attention"]["cross"], axis=-1), 1.0, atol=1e-3)
    drawn = get_image_rows(page)
    assert drawn.shape == (WIDTH, 22)
    assert drawn[2, 3] == 255
    assert (np.delete(drawn.flatten(), 2 * 22 + 3) <= 2).all()  # white is half a level of the array's 94 from 0
    assert page.data()["rows"] == ["a", "b", "</s>"]
    # Vector n is below column 4 n: both have their centers at the same place.
    [image_place] = [attributes for tag, attributes in page.tags if tag == "image"]
    [cells] = [attributes for tag, attributes in page.tags if tag == "g" and attributes.get("class") == "cells"]
    column = float(image_place["width"] or 0) / 22
    for vector in range(6):
        center = float(cells["data-left"] or 0) + float(cells["data-wide"] or 0) * (vector + 0.5)
        assert center == pytest.approx(float(image_place["x"] or 0) + column * (4 * vector + 0.5), abs=0.05)


def test_page_shows_attention_over_the_spectrogram(sound_bundle: str, tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'dragoman[speech]'")
    pytest.importorskip("soxr", reason="soxr is not installed: pip install 'dragoman[speech]'")
    write_wav(tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 500 * np.arange(1600) / 16_000))  # 10 frames of 10 ms
    page, numbers = explain_file(sound_bundle, tmp_path / "a.wav")
    assert numbers["source_tokens"] == ["0 s", "0.04 s", "0.08 s"]
    assert np.shape(numbers["attention"]["encoder"]) == (1, 2, 3, 3)
    drawn = get_image_rows(page)
    assert drawn.shape == (WIDTH, 10)
    assert drawn[:, 5].argmax() > WIDTH / 2  # low bands are at the bottom
    assert {"8 kHz", "0 kHz", "0 s"} <= set(page.text.split("\n"))


def test_explained_weights_of_a_picture_are_those_of_the_model(picture_bundle: str) -> None:
    translator = dragoman.load(picture_bundle, task="translation", device="cpu")
    text = write_array_text(np.random.default_rng(0).uniform(-1, 1, (21, WIDTH)).astype(np.float32), 1.0)
    explanation = explain(translator, text, target="ab")
    ids = [translator.bundle.tokenizer.encode_source(text)]
    outputs = [translator.bundle.tokenizer.target.encode("ab")]
    decoder = translator.session.forced_decoders[0]
    [cross] = compute_cross_attentions(decoder, ids, outputs, start_id=BEGIN_ID, finished=[True])
    np.testing.assert_allclose(explanation.cross.weights_LHTS, cross, rtol=1e-5, atol=1e-6)


def test_explain_refuses_bad_files_in_one_line(picture_bundle: str, sound_bundle: str, tmp_path: Path) -> None:
    for library in ("soundfile", "soxr", "PIL"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'dragoman[speech,pictures]'")
    from PIL import Image

    Image.new("L", (1, 1)).save(tmp_path / "pixel.png")
    Image.new("L", (40 * WIDTH, WIDTH), 255).save(tmp_path / "wide.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "wide.png").read_bytes()[:40])
    write_bomb(tmp_path / "bomb.png")
    write_wav(tmp_path / "silent.wav", np.zeros(1600))
    write_wav(tmp_path / "fast.wav", 0.1 * np.ones(19_200), 960_000)
    (tmp_path / "cut.wav").write_bytes((tmp_path / "fast.wav").read_bytes()[:30])
    write_wav(tmp_path / "long.wav", np.sin(np.arange(41_000)))
    Image.new("L", (5000, 10)).save(tmp_path / "flat.png")
    Image.new("L", (40, 40)).save(tmp_path / "other.png", format="GIF")  # nor EPS, for which Pillow would run a program
    (tmp_path / "text.png").write_text("no picture")
    for name, problem in {
        "pixel.png": "1 × 1 pixels; give one line of text, at least 4 pixels", "flat.png": "5000 × 10 pixels",
        "other.png": "not a picture, or damaged", "text.png": "not a picture, or damaged",
        "wide.png": "2560 numbers, and decoding.max_source_tokens is 2000",
        "cut.png": "not a picture, or damaged", "bomb.png": "more than 16000000", "none.png": "there is no such file",
        "silent.wav": "only silence", "fast.wav": "960000 Hz", "cut.wav": "not a sound file, or damaged",
        "long.wav": "2048 numbers",
    }.items():  # fmt: skip
        bundle = picture_bundle if name.endswith("png") else sound_bundle
        result = CliRunner().invoke(cli, ["explain", bundle, str(tmp_path / name), "-o", str(tmp_path / "page.html")])
        assert isinstance(result.exception, DataError), name
        assert problem in str(result.exception)
        assert str(result.exception).startswith(f"{tmp_path / name}: ") or "numbers" in problem
        assert "\n" not in str(result.exception)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("rate", "channels"), [(192_000, 1), (16_000, 8)])
def test_explain_reads_unusual_sounds(rate: int, channels: int, sound_bundle: str, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'dragoman[speech]'")
    pytest.importorskip("soxr", reason="soxr is not installed: pip install 'dragoman[speech]'")
    samples_NC = np.repeat(np.sin(np.arange(rate // 10) / rate * 3000)[:, None], channels, axis=1)
    soundfile.write(tmp_path / "a.wav", samples_NC, rate)
    assert explain_file(sound_bundle, tmp_path / "a.wav")[1]["source_tokens"] == ["0 s", "0.04 s", "0.08 s"]


def test_source_of_less_than_a_vector_has_an_output(picture_bundle: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'dragoman[pictures]'")
    image.new("L", (4, 64), 255).save(tmp_path / "narrow.png")  # one column of 8 numbers; a vector has four
    result = CliRunner().invoke(cli, ["read", picture_bundle, str(tmp_path / "narrow.png")])
    assert result.exit_code == 0, result.output
