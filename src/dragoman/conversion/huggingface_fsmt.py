"""FSMT folders of Hugging Face: fairseq's models of WMT19 and others, such as facebook/wmt19-en-de.

- `config.json` and `generation_config.json` describe the architecture, the languages and the search.
- `model.safetensors` or `pytorch_model.bin` has the weights.
- `vocab-src.json` and `vocab-tgt.json` number the subwords; `merges.txt` has the merges of fastBPE without their counts.
- `tokenizer_config.json` tells whether text is lower-cased, and `README.md` states the license.

The models read text that the Moses tokenizer has split. That tokenizer is not part of a bundle.
"""

from __future__ import annotations

from dragoman.bundle import ModelOrigin
from dragoman.conversion.generation_options import convert_generation_options
from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.model_card import read_license
from dragoman.conversion.model_section import build_model_section, describe_start
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.stated_tokens import FAIRSEQ_SPECIAL_TOKENS, check_special_ids, list_stated_texts
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS, SPECIAL_PIECES
from dragoman.data.tokenization.subword_nmt import CONTINUATION, END_OF_WORD, SubwordNmtScheme, parse_codes
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.errors import BundleError
from dragoman.io.safetensors import TensorStream

NAME = "huggingface-fsmt"
CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer_config.json"
SOURCE_VOCABULARY, TARGET_VOCABULARY, MERGES = "vocab-src.json", "vocab-tgt.json", "merges.txt"

MOSES_NOTE = (
    "The model reads text that the Moses tokenizer has split (with -a, and with escaped characters), and writes such text; "
    "the bundle has no Moses tokenizer."
)


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds an FSMT model."""
    return files.model_type == "fsmt"


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    settings = files.read_settings(CONFIG_FILE)
    if added := sorted(list_stated_texts(files) - {"<unk>", *FAIRSEQ_SPECIAL_TOKENS.values()}):
        raise BundleError(
            f"{files.folder}: its tokenizer has the added token {added[0][:40]!r}; dragoman has no added tokens of FSMT, so "
            "this model cannot be converted",
            code="conversion-unsupported",
        )
    source_order = _read_order(files, settings, SOURCE_VOCABULARY, "src_vocab_size")
    target_order = _read_order(files, settings, TARGET_VOCABULARY, "tgt_vocab_size")
    is_joint = source_order == target_order
    tying, weights = _build_weights(files, settings, (source_order, target_order))
    lowercase = files.find_settings(TOKENIZER_FILE).boolean("do_lower_case", False)
    scheme = _read_merges(files)
    source = _build_tokenizer(files, SOURCE_VOCABULARY, scheme, source_order, lowercase=lowercase)
    target = source if is_joint else _build_tokenizer(files, TARGET_VOCABULARY, scheme, target_order, lowercase=lowercase)
    return build_model(
        ModelOrigin(format=NAME, name=options.name, license=read_license(files)),
        settings.path,
        _read_languages(settings, options),
        {
            "model": build_model_section(settings, is_pre_norm=False, tie_embeddings=tying) | describe_start(settings),
            "decoding": convert_generation_options(files, settings, target_order),
        },
        PairTokenizer(source, target, append_source_eos=True),
        weights,
        notes=(MOSES_NOTE,),
    )


def _read_order(files: SourceFiles, settings: ModelSettings, file_name: str, size_name: str) -> VocabularyOrder:
    """Return the order of one vocabulary, in which a subword that does not end a word ends with `@@`."""
    path, document, vocab_size = files.folder / file_name, files.read_json_object(file_name), settings.integer(size_name)
    are_ids = all(type(index) is int for index in document.values())
    if len(document) != vocab_size or not are_ids or set(document.values()) != set(range(vocab_size)):
        raise damaged(path, f"does not have the ids 0 to {size_name} − 1 = {vocab_size - 1} once each")
    check_special_ids(settings, document)
    if "<unk>" not in document:
        raise damaged(path, "has no token <unk>")
    tokens = sorted(document, key=document.__getitem__)
    pieces = [token if token in SPECIAL_PIECES else _convert_token(token) for token in tokens]
    return VocabularyOrder.build(
        pieces, padding=document["<pad>"], unknown=document["<unk>"], begin=document["<s>"], end=document["</s>"]
    )


def _convert_token(token: str) -> str:
    """Return a subword in the form of subword-nmt: the end of a word has no mark, and all others end with `@@`."""
    return token.removesuffix(END_OF_WORD) if token.endswith(END_OF_WORD) else token + CONTINUATION


def _read_merges(files: SourceFiles) -> SubwordNmtScheme:
    """Return the merges, in which the last symbol of a word includes its end."""
    scheme = parse_codes(files.read_text(MERGES).split("\n"), str(files.path(MERGES)))
    return SubwordNmtScheme(scheme.merges, end_is_separate=False)


def _build_tokenizer(
    files: SourceFiles, file_name: str, scheme: SubwordNmtScheme, order: VocabularyOrder, *, lowercase: bool
) -> TokenListTokenizer:
    return TokenListTokenizer(scheme, order.pieces[len(SPECIAL_IDS) :], lowercase=lowercase, name=str(files.folder / file_name))


def _read_languages(settings: ModelSettings, options: ConversionOptions) -> tuple[str, str]:
    languages = settings.get("langs")
    if not isinstance(languages, list) or len(languages) != 2 or not all(isinstance(language, str) for language in languages):
        languages = ["", ""]
    return options.choose_languages(*languages)


def _build_weights(
    files: SourceFiles, settings: ModelSettings, orders: tuple[VocabularyOrder, VocabularyOrder]
) -> tuple[str, dict[str, TensorStream]]:
    """Return the weights of the bundle, and which matrices are equal, as `model.tie_embeddings` has it."""
    reader = WeightReader(files.open_tensors(), prefix="model.", family="FSMT")
    decoder_name, encoder_name = "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"
    decoder = reader.get(decoder_name)
    encoder = reader.get(encoder_name, decoder_name)  # tied weights are stored once
    output = reader.get("model.decoder.output_projection.weight", decoder_name)
    tying, weights = reader.read_vocabulary_matrices(encoder, decoder, output, orders)
    for stack in ("encoder", "decoder"):
        weights |= reader.read_layers(stack, settings.integer(f"{stack}_layers"))
        reader.skip_sinusoids(f"{stack}.embed_positions.weight", settings.integer("pad_token_id") + 1)
    reader.check_all_used()
    return tying, weights
