"""BART folders of Hugging Face, such as facebook/bart-base and models that are fine-tuned from it.

- `config.json` and `generation_config.json` describe the architecture and the search.
- `model.safetensors` or `pytorch_model.bin` has the weights, possibly in several files with an index.
- `tokenizer.json` has the byte-level BPE and the added tokens, or `vocab.json` and `merges.txt` have it.
- `README.md` names the license.

Source and output begin with `<s>`, which the decoder reads behind its start token `</s>`.
"""

from __future__ import annotations

from functools import partial

from dragoman.bundle import ModelOrigin
from dragoman.conversion.generation_options import convert_generation_options, read_generation_settings
from dragoman.conversion.model_card import read_license
from dragoman.conversion.model_section import build_model_section, describe_bart, describe_start
from dragoman.conversion.original_tokenizer import check_token_ids, open_tokenizer_json, open_transformers_tokenizer
from dragoman.conversion.padding_rows import are_padding_rows, describe_padding
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.stated_tokens import (
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    build_fairseq_order,
)
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model
from dragoman.conversion.tokenizer_json import build_byte_level_tokenizer, read_byte_level_tokens
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import EMBEDDING, WeightReader
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.io.safetensors import TensorStream

NAME = "huggingface-bart"
CONFIG_FILE = "config.json"
ALWAYS_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BOS_NOTE = "Each output begins with <s>, as the model was trained; generation_config.json does not force it."


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a BART model."""
    return files.model_type == "bart"


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    settings = files.read_settings(CONFIG_FILE)
    settings.require("tie_word_embeddings", True, True)
    # transformers takes this before what tokenizer.json states
    files.find_settings(TOKENIZER_CONFIG).require("add_prefix_space", False, False)
    table, scheme = read_byte_level_tokens(
        files, settings, ALWAYS_SPECIAL, is_padding=partial(are_padding_rows, files, EMBEDDING)
    )
    order = build_fairseq_order(settings, table, files.folder)
    weights = _build_weights(files, settings, order)
    tokenizer = build_byte_level_tokenizer(scheme, table, order, files.folder)
    encode = (
        open_tokenizer_json(files.path(TOKENIZER_JSON))
        if TOKENIZER_JSON in files
        else open_transformers_tokenizer(files.folder, "BartTokenizer")
    )
    check_token_ids(tokenizer, order, encode, files.folder)
    forced = read_generation_settings(files, settings).get("forced_bos_token_id")
    if forced not in (None, settings["bos_token_id"]):
        raise settings.refuse("forced_bos_token_id", "dragoman begins an output of BART with <s> only")
    return build_model(
        ModelOrigin(format=NAME, name=options.name, license=read_license(files)),
        settings.path,
        options.choose_languages(),
        {
            "model": build_model_section(settings, is_pre_norm=False, tie_embeddings="all")
            | describe_start(settings)
            | describe_bart(settings, weights),
            "decoding": convert_generation_options(
                files, settings, order, allowed=["forced_bos_token_id"], num_prompt_tokens=1
            ),
        },
        PairTokenizer(tokenizer, tokenizer, append_source_eos=True, prepend_bos=True),
        weights,
        notes=(*([BOS_NOTE] if forced is None else []), *describe_padding(order)),
    )


def _build_weights(files: SourceFiles, settings: ModelSettings, order: VocabularyOrder) -> dict[str, TensorStream]:
    """Return the weights of the bundle."""
    reader = WeightReader(files.open_tensors(), prefix="model.", family="BART")
    weights = {"output": reader.read_vocabulary_matrix(reader.get(*EMBEDDING), order)}
    for stack in ("encoder", "decoder"):
        weights |= reader.read_layers(stack, settings.integer(f"{stack}_layers"))
    weights |= reader.read_bart_embeddings(order, weights["output"].dtype)
    reader.check_all_used()
    return weights
