"""Whisper folders of Hugging Face, such as openai/whisper-tiny and models that are fine-tuned from it.

- `config.json` and `generation_config.json` describe the architecture, the languages and the suppressed tokens.
- `model.safetensors` or `pytorch_model.bin` has the weights, possibly in several files with an index.
- `tokenizer.json` has the byte-level BPE and the added tokens, or `vocab.json`, `merges.txt` and `added_tokens.json` have them.
- `preprocessor_config.json` states the windows of the spectrogram.
- `README.md` names the license.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.bundle import ModelOrigin, SpeechTokens
from dragoman.config.encoder_input import KERNEL_SIZE
from dragoman.conversion.generation_options import convert_generation_options, read_generation_settings
from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.model_card import read_license
from dragoman.conversion.model_section import ACTIVATIONS, build_model_section
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.stated_tokens import TokenTable, check_special_ids
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model
from dragoman.conversion.tokenizer_json import build_byte_level_tokenizer, read_byte_level_tokens
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.data.tokenization.byte_level_bpe import ByteLevelBpeScheme
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS
from dragoman.io.safetensors import TensorStream
from dragoman.model_weights import CONVOLUTIONS

NAME = "huggingface-whisper"
CONFIG_FILE = "config.json"
EMBEDDING = ("model.decoder.embed_tokens.weight", "proj_out.weight")
FEATURE_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files that state the windows of the spectrogram. The second one, of transformers 5, has them in `feature_extractor`."""
FEATURE_SETTINGS = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400}
"""Samples in a second, between two frames, and in a frame."""
END, START, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
TASKS = ("transcribe", "translate")
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
PREVIOUS = "<|startofprev|>"
"""Names of one token in later and in earlier files."""
LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")
NUM_TIMESTAMPS = 1501
"""Timestamps of the published models, which earlier files do not name: 0.00 to 30.00 seconds."""
MULTILINGUAL_ROWS = 51_865
"""Tokens from which on a published model has many languages."""
OWN_OPTIONS = ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids")
DEFAULT_MAX_INITIAL_TIMESTAMP = 50


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a Whisper model."""
    return files.model_type == "whisper"


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    settings = files.read_settings(CONFIG_FILE)
    settings.require("tie_word_embeddings", True, True)
    _check_features(files, settings)
    table, scheme = _read_tokens(files, settings)
    ids = {piece: index for index, piece in reversed(list(enumerate(table.pieces)))}
    order = _build_order(settings, table, ids)
    speech = _read_speech_tokens(files, settings, order, ids)
    weights = _build_weights(files, settings, order)
    tokenizer = build_byte_level_tokenizer(scheme, table, order, files.folder)
    languages = list(speech.languages) or None
    origin = ModelOrigin(
        format=NAME,
        name=options.name,
        license=read_license(files),
        source_languages=languages,
        target_languages=languages,
    )
    return build_model(
        origin,
        settings.path,
        ("", ""),
        {
            "task": {"kind": "transcription"},
            "model": _describe_model(settings),
            "decoding": convert_generation_options(files, settings, order, allowed=OWN_OPTIONS),
        },
        PairTokenizer(tokenizer, tokenizer, append_source_eos=False),
        weights,
        speech=speech,
    )


def _check_features(files: SourceFiles, settings: ModelSettings) -> None:
    """Raise BundleError for a spectrogram with other windows than the published models have."""
    for name in FEATURE_FILES:
        document = files.find_json_object(name)
        values = document.get("feature_extractor", document)
        features = ModelSettings(values if isinstance(values, dict) else {}, files.folder / name)
        for key, value in {**FEATURE_SETTINGS, "feature_size": settings.integer("num_mel_bins", 80)}.items():
            features.require(key, value, value)


def _read_tokens(files: SourceFiles, settings: ModelSettings) -> tuple[TokenTable, ByteLevelBpeScheme]:
    """Return the tokens by id, and the merges."""
    table, scheme = read_byte_level_tokens(files, settings, (END,), published_rows=settings.integer("vocab_size"))
    if table.num_made_up_rows not in (0, NUM_TIMESTAMPS):
        raise damaged(
            files.folder, f"has no tokens for the last {table.num_made_up_rows} rows of the embedding, which are no timestamps"
        )
    return table, scheme


def _build_order(settings: ModelSettings, table: TokenTable, ids: Mapping[str, int]) -> VocabularyOrder:
    """Return the order of the vocabulary, which has neither padding nor an unknown token."""
    check_special_ids(settings, ids, {"eos_token_id": END, "decoder_start_token_id": START})
    return VocabularyOrder.build(table.pieces, padding=None, unknown=None, begin=ids[START], end=ids[END])


def _read_speech_tokens(
    files: SourceFiles, settings: ModelSettings, order: VocabularyOrder, ids: Mapping[str, int]
) -> SpeechTokens:
    """Return the tokens of languages and tasks, the timestamps and the suppressed tokens."""
    generation = read_generation_settings(files, settings)
    new_ids = order.ids
    has_languages = "lang_to_id" in generation or settings.integer("vocab_size") >= MULTILINGUAL_ROWS
    languages = {}
    if generation.boolean("is_multilingual", has_languages):
        rows = sorted((row, match[1]) for token, row in ids.items() if (match := LANGUAGE_TOKEN.fullmatch(token)))
        languages = {language: new_ids[row] for row, language in rows}
    for token in (NO_TIMESTAMPS, *(f"<|{task}|>" for task in TASKS[: bool(languages)])):
        if token not in ids:
            raise damaged(files.folder, f"has no token {token}")
    last = ids[NO_TIMESTAMPS]
    if last + 1 == len(order.rows) - 2:  # two special tokens have no row
        raise damaged(files.folder, f"has no timestamps behind {NO_TIMESTAMPS}")
    no_speech = next((new_ids[ids[token]] for token in NO_SPEECH if token in ids), None)
    suppressed = {name: _read_ids(generation, name, new_ids) for name in ("suppress_tokens", "begin_suppress_tokens")}
    first_special = ids[END] + len(SPECIAL_IDS)  # tokens of text stand before the end token in the source
    return SpeechTokens(
        first_special=first_special,
        languages=languages,
        tasks={task: new_ids[ids[f"<|{task}|>"]] for task in TASKS if languages and f"<|{task}|>" in ids},
        no_timestamps=new_ids[last],
        first_timestamp=new_ids[last + 1],
        no_speech=no_speech,
        previous=new_ids[ids[PREVIOUS]] if PREVIOUS in ids else None,
        suppressed=suppressed["suppress_tokens"],
        suppressed_first=suppressed["begin_suppress_tokens"],
        max_initial_timestamp=generation.integer("max_initial_timestamp_index", DEFAULT_MAX_INITIAL_TIMESTAMP),
    )


def _read_ids(generation: ModelSettings, name: str, new_ids: Mapping[int | None, int]) -> list[int]:
    """Return tokens of a setting by their ids in the bundle. Raise DataError for something else than ids of tokens."""
    rows = generation.get(name) or []
    if not isinstance(rows, list) or any(type(row) is not int or row not in new_ids for row in rows):
        raise damaged(generation.path, f"{name} = {rows!r:.60} is not a list of ids of tokens")
    return sorted({new_ids[row] for row in rows})


def _describe_model(settings: ModelSettings) -> dict[str, Any]:
    """Return the recipe section `model`."""
    section = build_model_section(
        # The family's name for padding, which config.json may leave out.
        ModelSettings({**settings, "pad_token_id": settings.integer("eos_token_id")}, settings.path),
        is_pre_norm=True,
        tie_embeddings="decoder",
    )
    return section | {
        "activation": settings.choice("activation_function", ACTIVATIONS, "gelu"),
        "position_encoding": "learned",
        "position_offset": 0,
        "max_positions": settings.integer("max_target_positions", 448),
        "frontend": "log-mel",
        "num_mel_bins": settings.integer("num_mel_bins", 80),
        "max_source_positions": settings.integer("max_source_positions", 1500),
        "output_bias": True,  # gives the two missing special tokens no probability
        "scale_embeddings": settings.boolean("scale_embedding", False),
        "decoder_start_token": "bos",
        "append_source_eos": False,
    }


def _build_weights(files: SourceFiles, settings: ModelSettings, order: VocabularyOrder) -> dict[str, TensorStream]:
    """Return the weights of the bundle."""
    reader = WeightReader(files.open_tensors(), prefix="model.", family="Whisper")
    weights = {"output": reader.read_vocabulary_matrix(reader.get(*EMBEDDING), order)}
    for stack in ("encoder", "decoder"):
        weights |= reader.read_layers(stack, settings.integer(f"{stack}_layers"), key_bias=False)
        weights |= reader.read_norm(stack)
    weights |= reader.read_learned_positions(0, may_differ=True)
    weights["output_bias"] = reader.read_output_bias(order, weights["output"].dtype)
    for index in range(2):
        name = f"encoder.conv{index + 1}"
        weight_DFK = np.asarray(reader.get(f"model.{name}.weight"))
        if weight_DFK.ndim != 3 or weight_DFK.shape[2] != KERNEL_SIZE:
            raise damaged(reader.tensors.location, f"{name}.weight has the shape {weight_DFK.shape}, not (D, F, {KERNEL_SIZE})")
        matrix_DX = np.ascontiguousarray(weight_DFK.swapaxes(1, 2)).reshape(len(weight_DFK), -1)
        weights[f"{CONVOLUTIONS}.{index}.weight"] = reader.builder.concat([matrix_DX])
        weights[f"{CONVOLUTIONS}.{index}.bias"] = reader.read(f"{name}.bias")
    reader.check_all_used()
    return weights
