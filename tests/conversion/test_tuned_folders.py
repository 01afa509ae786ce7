"""Folders as fine-tuners save them: ids of odd texts, decoded text and greedy outputs equal those of `transformers`."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dragoman
import fsmt_folders
import t5_folders
from damaged_sources import change_json, check_any_refusal, check_refusal
from dragoman.bundle import load_bundle
from dragoman.conversion.original_tokenizer import check_token_ids
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.token_list import TokenListTokenizer
from expected_errors import raises_code
from marian_folders import write_folder
from odd_texts import PLAIN, make_odd_texts
from tuned_folders import LANGUAGES, write_bart, write_m2m100, write_marian, write_mbart50, write_nllb

transformers: Any = pytest.importorskip("transformers", reason="folders are saved by transformers: dragoman[test]")
pytestmark = pytest.mark.usefixtures("quiet")
AddedToken = transformers.AddedToken
WRITERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "marian": write_marian,
    "nllb": write_nllb,
    "m2m100": write_m2m100,
    "mbart50": write_mbart50,
    "bart": write_bart,
    **{variant: partial(t5_folders.write_folder, variant=variant, with_json=True) for variant in t5_folders.VARIANTS},
}
# One family of each reader is in the fast tier.
FAMILIES = [
    pytest.param(family, marks=[] if family in ("marian", "nllb", "bart", "t5") else pytest.mark.slow) for family in WRITERS
]
LANGUAGE_PAIRS = {"nllb": ("eng_Latn", "deu_Latn"), "m2m100": ("en", "de"), "mbart50": ("en_XX", "de_DE")}
SPECIAL_IDS = {"<unk>": 1, "</s>": 3}
MAX_NEW_TOKENS = 12


def add_flags(tokenizer: Any) -> None:
    """Add tokens of all flags."""
    tokenizer.add_tokens(
        [
            AddedToken("<l>", lstrip=True),
            AddedToken("<r>", rstrip=True),
            AddedToken("<lr>", lstrip=True, rstrip=True, special=True),
            AddedToken("old", single_word=True),
            AddedToken("Ab", normalized=False),
            AddedToken("$x", single_word=True),
        ]
    )


CHANGES: dict[str, Callable[[Any], object]] = {
    "plain": lambda tokenizer: None,
    "one": lambda tokenizer: tokenizer.add_tokens(["<sep>"]),
    "several": lambda tokenizer: tokenizer.add_tokens(["<sep>", "<b>", "house", "<sep>x"]),
    "special": lambda tokenizer: tokenizer.add_tokens(["<s1>", "<s2>"], special_tokens=True),
    "flags": add_flags,
}


def convert(folder: Path) -> PairTokenizer:
    bundle_path = folder.with_name(f"{folder.name}-bundle")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dragoman.convert(folder, bundle_path)
    return load_bundle(bundle_path).tokenizer


def make_map(vocabulary: Any, tokenizer: Any, side: str = "encoder") -> Callable[[int], int]:
    """Return the function from an id of transformers to dragoman's id, by the names of both.

    side: `encoder` or `target_encoder`, for separate vocabularies
    """
    added = {token.text: token.id for token in vocabulary.added}
    if isinstance(vocabulary, TokenListTokenizer):  # the tokens are written as in transformers
        added = {token: index for index, token in enumerate(vocabulary.tokens) if index > 3} | added
    names = {index: piece for piece, index in getattr(tokenizer, side, {}).items()}
    if not names:  # the library tokenizers names an added token by its normalized text
        names = {index: token.content for index, token in tokenizer.added_tokens_decoder.items()}
    special = SPECIAL_IDS | ({"<pad>": 2} if tokenizer.bos_token is None else {"<pad>": 0, "<s>": 2})

    def map_id(index: int) -> int:
        name = names.get(index) or tokenizer.convert_ids_to_tokens(index)
        if name is None or (name == tokenizer.unk_token and index != tokenizer.unk_token_id):
            name = f"<unused-{index}>"
        if isinstance(tokenizer, transformers.ByT5Tokenizer) and 3 <= index < 259:  # bytes behind three special tokens
            name = f"<0x{index - 3:02X}>"
        return special[name] if name in special else added.get(name, vocabulary.piece_to_id(name) or 0)

    return map_id


def check_ids(vocabulary: Any, tokenizer: Any) -> None:
    """Check the ids and the decoded text of 240 odd texts."""
    map_id = make_map(vocabulary, tokenizer)
    added = [token.content for token in tokenizer.added_tokens_decoder.values()][-8:]
    for text in make_odd_texts(added):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if "<2de>" in tokenizer.get_vocab() and tokenizer.eos_token_id in ids:
            continue  # transformers 5 gives MADLAD's unknown characters the id of the end token
        assert vocabulary.encode(text) == [map_id(index) for index in ids], text
        if tokenizer.unk_token_id not in ids and not getattr(tokenizer, "separate_vocabs", False):
            expected = re.sub(r"[\r\n▁]", " ", tokenizer.decode(ids, skip_special_tokens=True)).strip()
            assert vocabulary.decode(vocabulary.encode(text)).replace("▁", " ").strip() == expected, text


@torch.no_grad()
def check_outputs(folder: Path, model: Any, tokenizer: Any, **languages: Any) -> None:
    """Check the ids of greedy outputs of plain sentences and of texts with added tokens."""
    translator = dragoman.load(folder.with_name(f"{folder.name}-bundle"), task="translation", device="cpu", precision="float32")
    target = translator.bundle.tokenizer.target
    map_id = make_map(target, tokenizer, "target_encoder" if getattr(tokenizer, "separate_vocabs", False) else "encoder")
    forced = None
    if model.config.model_type != "t5" and languages:
        token = languages["target_language"] if tokenizer.is_fast else f"__{languages['target_language']}__"
        forced = tokenizer.convert_tokens_to_ids(token)
    elif model.config.model_type == "bart":
        forced = tokenizer.bos_token_id
    added = [token.content for token in tokenizer.added_tokens_decoder.values()][-2:]
    start = model.config.decoder_start_token_id
    excluded = {tokenizer.bos_token_id, tokenizer.pad_token_id, start} - {None, tokenizer.eos_token_id}
    texts = [*PLAIN, *(f"The {token} house {token}" for token in added if token not in ("</s>", "<unk>", tokenizer.pad_token))]
    prefix = ""
    if "<2de>" in tokenizer.get_vocab():  # MADLAD reads the token in the text
        prefix, languages = "<2de> ", {"target_language": "de"}
    for text in texts:
        row = model.generate(
            **tokenizer(prefix + text, return_tensors="pt"), max_new_tokens=MAX_NEW_TOKENS, max_length=None, num_beams=1,
            do_sample=False, forced_bos_token_id=forced, bad_words_ids=[[index] for index in excluded],
        )[0].tolist()[1 if forced is None else 2 :]  # fmt: skip
        expected = (
            [map_id(index) for index in row[: row.index(tokenizer.eos_token_id)] if index is not None]
            if (tokenizer.eos_token_id in row)
            else [map_id(index) for index in row]
        )
        (translation,) = translator.translate([text], method="greedy", repetition_window=0, **languages)
        added_ids = {token.text: token.id for token in target.added} if hasattr(target, "added") else {}
        tokens = [added_ids.get(piece, target.piece_to_id(piece)) for piece in translation.tokens]
        length = min(len(expected), len(tokens), MAX_NEW_TOKENS - 2)
        assert tokens[:length] == expected[:length], text


@pytest.mark.parametrize(
    ("family", "change"),
    [
        pytest.param(family, change, marks=[] if change == "flags" and family not in ("t5-v1.1", "mt5") else pytest.mark.slow)
        for family in WRITERS
        for change in CHANGES
    ],
)
def test_added_tokens_keep_their_ids(family: str, change: str, tmp_path: Path) -> None:
    model, tokenizer = WRITERS[family](tmp_path / "source", change=CHANGES[change])
    vocabulary = convert(tmp_path / "source").source
    check_ids(vocabulary, tokenizer)
    languages = LANGUAGE_PAIRS.get(family)
    options = {} if languages is None else {"source_language": languages[0], "target_language": languages[1]}
    check_outputs(tmp_path / "source", model, tokenizer, **options)


@pytest.mark.parametrize(
    ("languages", "separate"),
    [((LANGUAGES[0],), False), (LANGUAGES, True), pytest.param((LANGUAGES[0],), True, marks=pytest.mark.slow)],
)
def test_marian_language_tokens_keep_their_ids(languages: tuple[str, ...], separate: bool, tmp_path: Path) -> None:
    """A single language token, and tokens of separate vocabularies."""
    model, tokenizer = write_marian(tmp_path / "source", CHANGES["one"], languages=languages, separate=separate)
    pair = convert(tmp_path / "source")
    check_ids(pair.source, tokenizer)
    expected = [make_map(pair.source, tokenizer)(index) for index in tokenizer(">>deu<< The house <sep>")["input_ids"]]
    assert pair.encode_source(">>deu<< The house <sep>") == expected
    assert (pair.languages is not None) == (len(languages) > 1)
    if pair.languages is not None:
        assert pair.select_languages(None, "deu").encode_source("The house <sep>") == expected
    else:
        check_outputs(tmp_path / "source", model, tokenizer)


@pytest.mark.parametrize(
    ("family", "language", "keep_sentencepiece"),
    [
        ("nllb", "xyz_Latn", False),
        ("mbart50", "xy_XY", True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("nllb", "xyz_Latn", True), ("mbart50", "xy_XY", False))),
    ],
)
def test_folder_with_a_new_language(family: str, language: str, keep_sentencepiece: bool, tmp_path: Path) -> None:
    model, tokenizer = WRITERS[family](
        tmp_path / "source",
        change=lambda tokenizer: tokenizer.add_tokens([language], special_tokens=True),
        keep_sentencepiece=keep_sentencepiece,
    )
    check_ids(convert(tmp_path / "source").source, tokenizer)
    options = {"source_language": LANGUAGE_PAIRS[family][0], "target_language": language}
    check_outputs(tmp_path / "source", model, tokenizer, **options)


def test_madlad_with_a_new_language(tmp_path: Path) -> None:
    """The language is the added token `<2xx>`, which text may hold."""
    _, tokenizer = WRITERS["madlad"](tmp_path / "source", change=lambda tokenizer: tokenizer.add_tokens(["<2xx>"]))
    pair = convert(tmp_path / "source")
    expected = [make_map(pair.source, tokenizer)(index) for index in tokenizer("<2xx> The house is old")["input_ids"]]
    assert pair.select_languages(None, "xx").encode_source("The house is old") == expected


@pytest.mark.parametrize("change", ["one", "special", "flags"])
def test_fsmt_with_added_tokens_raises(change: str, tmp_path: Path) -> None:
    """FSMT has the plain and the sharded folders of the other families, but no added tokens."""
    fsmt_folders.write_folder(tmp_path / "source", is_shared=True)
    tokenizer = transformers.FSMTTokenizer.from_pretrained(tmp_path / "source")
    special = set(tokenizer.get_added_vocab())
    CHANGES[change](tokenizer)
    tokenizer.save_pretrained(tmp_path / "source")
    check_refusal(tmp_path / "source", "conversion-unsupported", repr(min(set(tokenizer.get_added_vocab()) - special)), "FSMT")


def test_added_tokens_are_normalized(tmp_path: Path) -> None:
    """The library tokenizers finds either of two equal tokens at random, and fails on some texts with an empty one."""
    tokens = ["\u3000", "½", AddedToken("ﬁne", normalized=True), AddedToken("fine", normalized=False), "m²", "<a b>"]
    _, tokenizer = write_nllb(tmp_path / "source", lambda tokenizer: tokenizer.add_tokens(tokens))
    check_ids(convert(tmp_path / "source").source, tokenizer)
    for added, name in ((["<a>", "\x01"], r"'\x01' is no text"), (["\u3000", "\u00a0"], r"'\xa0' is equal to '\u3000'")):
        folder = tmp_path / str(len(name))
        write_nllb(folder, partial(transformers.NllbTokenizer.add_tokens, new_tokens=added))
        check_refusal(folder, "conversion-unsupported", name, "normalized=False")


def test_adapter_of_peft_raises(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    check_refusal(tmp_path, "conversion-unsupported", "adapter_config.json", "merge_and_unload")


def test_m2m100_with_a_new_language(tmp_path: Path) -> None:
    """transformers 5 gives the new token the row of `__af__`, because its own language tokens are no added tokens."""
    model, tokenizer = write_m2m100(
        tmp_path / "source", lambda tokenizer: tokenizer.add_tokens(["__xyz__"], special_tokens=True)
    )
    assert tokenizer.convert_tokens_to_ids("__xyz__") == tokenizer.get_lang_id("af")
    check_ids(convert(tmp_path / "source").source, tokenizer)
    check_outputs(tmp_path / "source", model, tokenizer, source_language="en", target_language="xyz")


def test_nllb_ids_in_other_order(tmp_path: Path) -> None:
    """The mask before the languages, and the languages in another order, as `tokenizer.json` states them."""
    write_nllb(tmp_path / "source", num_languages=None)
    path = tmp_path / "source" / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    tokens = [token for token in document["added_tokens"] if token["id"] > 3]
    for token, index in zip(tokens, reversed([token["id"] for token in tokens]), strict=True):
        token["id"] = index
    document["added_tokens"].sort(key=lambda token: token["id"])
    path.write_text(json.dumps(document), encoding="utf-8")
    tokenizer = transformers.NllbTokenizer.from_pretrained(tmp_path / "source", src_lang="eng_Latn", tgt_lang="deu_Latn")
    assert tokenizer.convert_tokens_to_ids("ace_Arab") == max(token["id"] for token in tokens) - 1
    pair = convert(tmp_path / "source").select_languages("eng_Latn", "deu_Latn")
    source_rows = load_file(tmp_path / "source" / "model.safetensors")["model.shared.weight"]
    rows = load_file(tmp_path / "source-bundle" / "weights.safetensors")["output"]
    for language in ("ace_Arab", "eng_Latn", "zul_Latn", "<mask>"):
        index = pair.source.piece_to_id(language)
        assert index is not None
        assert torch.equal(rows[index], source_rows[tokenizer.convert_tokens_to_ids(language)])


@pytest.mark.parametrize("version", ["text merges", "first piece", "add_prefix_space", "two steps", "strip", "no normalizer"])
def test_tokenizer_json_of_other_versions(version: str, tmp_path: Path) -> None:
    """The library tokenizers itself reads the changed file.

    Old versions of transformers left out the merges of the first piece, whose score is zero.
    """
    tokenizers: Any = pytest.importorskip("tokenizers", reason="reads tokenizer.json with tokenizers: dragoman[test]")
    _, tokenizer = write_nllb(tmp_path / "source", CHANGES["several"], keep_sentencepiece=version == "first piece")
    path = tmp_path / "source" / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    first = "".join(document["model"]["merges"][0])
    match version:
        case "text merges":
            document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]
        case "first piece":
            merges = [merge for merge in document["model"]["merges"] if "".join(merge) != first]
            document["model"]["merges"] = merges
        case "add_prefix_space":
            document["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
        case "two steps":
            document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [document["pre_tokenizer"]]}
        case "no normalizer":
            document["normalizer"] = None
        case _:
            steps = document["normalizer"]["normalizers"]
            steps.insert(1, {"type": "Strip", "strip_left": False, "strip_right": True})
            steps[2]["content"] = "▁"
    path.write_text(json.dumps(document), encoding="utf-8")
    peer = tokenizers.Tokenizer.from_file(str(path))
    vocabulary = convert(tmp_path / "source").source
    map_id = make_map(vocabulary, tokenizer)
    for text in [*make_odd_texts(["<sep>", "<b>"]), first]:
        expected = [map_id(index) for index in peer.encode(text, add_special_tokens=False).ids]
        assert vocabulary.encode(text) == expected, text


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda document: document["model"]["merges"].append(["T", "h"]), "model.merges"),
        (lambda document: document["model"].update(byte_fallback=True), "byte_fallback"),
        (lambda document: document["model"].update(type="WordPiece"), "WordPiece"),
        (lambda document: document.update(normalizer={"type": "NFKC"}), "NFKC"),
        (lambda document: document.update(pre_tokenizer={"type": "ByteLevel"}), "pre_tokenizer"),
        (lambda document: document["model"].update(vocab=5), "vocabulary"),
        (lambda document: document["added_tokens"].append({"id": "5", "content": "x"}), "added token"),
        (lambda document: document["added_tokens"].append({"id": 5, "content": "eng_Latn"}), "eng_Latn"),
    ],
)
def test_unsupported_tokenizer_json_raises(change: Callable[[Any], object], name: str, tmp_path: Path) -> None:
    write_nllb(tmp_path / "source")
    change_json(tmp_path / "source" / "tokenizer.json", change)
    check_any_refusal(tmp_path / "source", name, "tokenizer.json")


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("family", ["marian", "nllb", "mbart50", "bart", "byt5", "madlad"])
def test_row_without_a_token_raises(family: str, count: int, tmp_path: Path) -> None:
    """The weights of a fine-tuned model with the tokenizer of the original."""
    WRITERS[family](
        tmp_path / "source", change=lambda tokenizer: tokenizer.add_tokens([f"<t{index}>" for index in range(count)])
    )
    size = json.loads((tmp_path / "source" / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    for path in (tmp_path / "source").glob("*token*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        for key, value in document.items():
            if key == "added_tokens":
                document[key] = [token for token in value if token["id"] < size - count]
            elif key == "added_tokens_decoder":
                document[key] = {index: token for index, token in value.items() if int(index) < size - count}
        path.write_text(json.dumps(document if path.name != "added_tokens.json" else {}), encoding="utf-8")
    check_refusal(tmp_path / "source", "source-damaged", f"row {size - count} of the embedding", "resize_token_embeddings")


@pytest.mark.parametrize(("family", "count"), [("m2m100", 8), ("t5", 85)])
def test_rows_without_a_token_are_those_of_published_models(family: str, count: int, tmp_path: Path) -> None:
    """M2M-100 has 8 made-up words, and T5 fills its 171 rows up to 256. Any other trained row had a token."""
    model, _ = WRITERS[family](tmp_path / "source")
    assert dragoman.convert(tmp_path / "source", tmp_path / "bundle").notes == (
        f"The bundle keeps {count} rows of the embedding without a token, as the published models of the family have.",
    )
    num_rows = model.config.vocab_size
    for removed in (1, count - 1):
        with torch.no_grad():
            model.resize_token_embeddings(num_rows - removed)
            model.get_input_embeddings().weight[-1] += 1.0
        model.save_pretrained(tmp_path / "source")
        check_refusal(tmp_path / "source", "source-damaged", f"no token reaches row {num_rows - count} of the embedding")


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_of_another_size_raises(family: str, tmp_path: Path) -> None:
    WRITERS[family](tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    tensors = load_file(path)
    name = "shared.weight" if "shared.weight" in tensors else "model.shared.weight"
    for rows in (torch.cat([tensors[name], torch.ones(3, tensors[name].shape[1])]), tensors[name][:-1]):
        save_file(tensors | {name: rows.contiguous()}, path)
        check_refusal(tmp_path / "source", "source-damaged", str(tuple(rows.shape)))


def pad(model: Any) -> None:
    """Fill the embedding up to the next multiple of 64. pad_to_multiple_of of transformers 5 forgets MarianMT's output bias."""
    model.resize_token_embeddings((model.config.vocab_size // 64 + 1) * 64)


def pad_and_tune(model: Any) -> None:
    """Fill the embedding up to a multiple of 64, and train it for three steps on tokens."""
    size = model.config.vocab_size
    pad(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(4, min(size, 60), (4, 9), generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        model(input_ids=ids, labels=ids.flip(1)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_embedding_gives_the_same_outputs(family: str, tmp_path: Path) -> None:
    sizes: list[int] = []

    def change(model: Any) -> None:
        sizes.append(model.config.vocab_size)
        pad_and_tune(model)
        sizes.append(model.config.vocab_size)

    model, tokenizer = WRITERS[family](tmp_path / "source", change=CHANGES["several"], change_model=change)
    result = dragoman.convert(tmp_path / "source", tmp_path / "source-bundle")
    rows = load_file(tmp_path / "source-bundle" / "weights.safetensors")["output"]
    assert len(rows) == sizes[0] + (family == "marian" or family in t5_folders.VARIANTS)  # these have no `<s>`
    assert f"The last {sizes[1] - sizes[0]} rows of the embedding belong to no token and have" in result.notes[-1]
    check_ids(load_bundle(tmp_path / "source-bundle").tokenizer.source, tokenizer)
    languages = LANGUAGE_PAIRS.get(family)
    options = {} if languages is None else {"source_language": languages[0], "target_language": languages[1]}
    check_outputs(tmp_path / "source", model, tokenizer, **options)


@pytest.mark.parametrize("multiple", [8, 128])
def test_bias_without_padding_is_that_of_the_tokens(multiple: int, tmp_path: Path) -> None:
    """`pad_to_multiple_of` of transformers 5 leaves `final_logits_bias` as it is. The reference is the model before that."""
    model, tokenizer = write_marian(tmp_path / "source", CHANGES["several"])
    with torch.no_grad():
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    expected = copy.deepcopy(model)
    model.resize_token_embeddings(model.config.vocab_size + 1, pad_to_multiple_of=multiple)
    model.save_pretrained(tmp_path / "source")
    tensors = load_file(tmp_path / "source" / "model.safetensors") | {"final_logits_bias": expected.final_logits_bias}
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    convert(tmp_path / "source")
    check_outputs(tmp_path / "source", expected, tokenizer)
    tensors["final_logits_bias"] = expected.final_logits_bias[:, :-1].contiguous()
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    check_refusal(tmp_path / "source", "source-damaged", "final_logits_bias has", "resize the bias")


@pytest.mark.parametrize("fill", [0.0, "mean", "trained", "one trained"])
def test_rows_of_unknown_tokens_are_no_padding(fill: float | str, tmp_path: Path) -> None:
    """Rows that differ belong to tokens that the folder no longer states."""

    def pad_and_fill(model: Any) -> None:
        size = model.config.vocab_size
        pad(model)
        with torch.no_grad():
            rows = model.model.shared.weight[size:]
            if fill == 0.0:
                rows.zero_()
            elif fill == "trained":
                rows += torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
            elif fill == "one trained":
                rows[2] += 0.5

    _, tokenizer = write_marian(tmp_path / "source", change_model=pad_and_fill)
    if fill in ("trained", "one trained"):
        with raises_code("source-damaged", f"row {len(tokenizer)} of the embedding", "pad_to_multiple_of"):
            convert(tmp_path / "source")
    else:
        check_ids(convert(tmp_path / "source").source, tokenizer)


def test_token_without_a_row_raises(tmp_path: Path) -> None:
    """The tokenizer of a fine-tuned model with the weights of the original."""
    write_marian(tmp_path / "source")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "source")
    tokenizer.add_tokens(["<sep>"])
    tokenizer.save_pretrained(tmp_path / "source")
    check_refusal(tmp_path / "source", "source-damaged", "'<sep>'", "added_tokens.json")


def test_old_folder_with_added_tokens_json_only(tmp_path: Path) -> None:
    """transformers before 4.34 wrote no added_tokens_decoder."""
    _, tokenizer = write_marian(tmp_path / "source", CHANGES["several"])
    change_json(tmp_path / "source" / "tokenizer_config.json", lambda document: document.pop("added_tokens_decoder"))
    check_ids(convert(tmp_path / "source").source, tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_sharded_bfloat16_weights(family: str, tmp_path: Path) -> None:
    options = {"dtype": torch.bfloat16, "shard_size": "4KB"}
    model, tokenizer = WRITERS[family](tmp_path / "source", change=CHANGES["one"], **options)
    assert (tmp_path / "source" / "model.safetensors.index.json").exists()
    check_ids(convert(tmp_path / "source").source, tokenizer)
    weights = load_file(tmp_path / "source-bundle" / "weights.safetensors")
    wide = {name for name, tensor in weights.items() if tensor.dtype != torch.bfloat16 and "positions" not in name}
    # T5 scales the last normalization by 1/√d_model, and has no output bias of its own.
    assert wide - ({"decoder.norm.weight", "output_bias"} if family in t5_folders.VARIANTS else set()) == set()
    rows = set(map(tuple, getattr(model, "model", model).shared.weight.tolist()))
    own_rows = weights.get("encoder.embedding.weight", weights["output"]).tolist()
    assert {row for row in map(tuple, own_rows) if any(row)} == {row for row in rows if any(row)}


def test_infinite_bias_excludes_a_token(tmp_path: Path) -> None:
    """transformers takes a bias of −inf: such a token is never produced."""

    def exclude(model: Any) -> None:
        with torch.no_grad():
            model.final_logits_bias[0, 5:20] = -torch.inf

    model, tokenizer = write_marian(tmp_path / "source", change_model=exclude)
    convert(tmp_path / "source")
    check_outputs(tmp_path / "source", model, tokenizer)
    bias = load_file(tmp_path / "source-bundle" / "weights.safetensors")["output_bias"]
    assert bias.isfinite().all()
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    for value in (torch.inf, torch.nan):
        tensors["final_logits_bias"][0, 7] = value
        save_file(tensors, tmp_path / "source" / "model.safetensors")
        check_refusal(tmp_path / "source", "source-damaged", "output_bias")


def test_converter_names_a_text_with_other_ids(tmp_path: Path) -> None:
    """The dictionary of the source exchanges two pieces, so the original gives other rows than the conversion."""
    write_marian(tmp_path / "source")
    vocabulary = convert(tmp_path / "source").source
    assert isinstance(vocabulary, PieceVocabulary)
    order = VocabularyOrder(vocabulary.pieces, tuple(range(len(vocabulary))))
    check_token_ids(vocabulary, order, vocabulary.encode, tmp_path)
    check_token_ids(vocabulary, order, None, tmp_path)
    exchanged = {9: 10, 10: 9}
    with raises_code("conversion-unsupported", str(tmp_path), "original"):
        check_token_ids(
            vocabulary, order, lambda text: [exchanged.get(index, index) for index in vocabulary.encode(text)], tmp_path
        )


def test_unknown_characters_are_no_special_token(tmp_path: Path) -> None:
    """Neither `<`, `s` nor `>` is a piece of this model, so SentencePiece makes one unknown piece of them."""
    write_folder(tmp_path / "source")
    vocabulary = convert(tmp_path / "source").source
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "source")
    assert tokenizer("abc <s>")["input_ids"][-2] == tokenizer.unk_token_id
    assert vocabulary.encode("abc <s>")[-1] == SPECIAL_IDS["<unk>"]
