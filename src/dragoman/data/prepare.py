"""From text to an encoded corpus, once: learn the subword model, encode, and write down what became of every pair.

    pairs → Tokeniser (source.model, target.model) → train.arrow, valid.arrow → prepared.json

`prepared.json` holds digests of everything that went in and of each file that came out. Asked again with the same, and with
those files as they were, `prepare` does nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.config import CorpusConfig, Recipe
from dragoman.data.corpus import Corpus, EncodedPair, write_corpus
from dragoman.data.pair import Pair
from dragoman.data.readers import corpus_files, read_pairs
from dragoman.data.subword import SOURCE_MODEL, TARGET_MODEL, Tokeniser, learn_tokeniser, read_tokeniser, write_tokeniser
from dragoman.errors import DataError, OutputError, RecipeError
from dragoman.storage import cannot_write, write_json

MANIFEST = "prepared.json"
OUTPUTS = (SOURCE_MODEL, TARGET_MODEL, "train.arrow", "valid.arrow")
NAMED_LINES = 5
CHUNK = 4096

Notice = Callable[[str], None]


@dataclass
class Fate:
    """What became of the pairs of one corpus, with the first lines of those that did not stay as they were."""

    kept: int = 0
    empty: int = 0
    over_long: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    empty_at: list[str] = field(default_factory=list)
    over_long_at: list[str] = field(default_factory=list)

    def sentences(self, over_long: str) -> list[str]:
        """One line for people on each kind of pair that did not stay as it was."""
        told = []
        if self.empty:
            told.append(f"{self.empty} pairs with an empty side dropped ({_first(self.empty_at, self.empty)})")
        if self.over_long:
            done = {"drop": "dropped", "truncate": "truncated"}[over_long]
            told.append(f"{self.over_long} pairs beyond data.max_length {done} ({_first(self.over_long_at, self.over_long)})")
        return told


def _first(places: list[str], count: int) -> str:
    return ", ".join(places) + (", …" if count > len(places) else "")


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus. `fates` is what `prepared.json` tells of each part; `fresh` is false where nothing had to be done."""

    tokeniser: Tokeniser
    train: Corpus
    valid: Corpus | None
    fates: dict[str, Fate]
    fresh: bool


def prepare(
    recipe: Recipe, folder: Path, notice: Notice = lambda _: None, *, accept: Callable[[dict[str, str]], None] = lambda _: None
) -> Prepared:
    """Prepare the recipe's corpora in `folder`, or take what stands there if nothing changed.

    What stands there is replaced only when the new files are whole and `accept`, which is given the digest of each, lets them
    pass.
    """
    if recipe.data.train is None:
        raise RecipeError("data.train is not given: name the files to learn from")
    root = Path(recipe.data.root)
    wanted = _digest(recipe, root)
    try:
        if (found := _read_manifest(folder)) is not None and found["digest"] == wanted:
            if found["files"] == prepared_files(folder):
                accept(found["files"])
                return _load(recipe, folder, found["fates"], fresh=False)
            notice(f"{folder}: a prepared file is missing or was changed; preparing anew")
        work = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        tokeniser = _learn(recipe, root, work, notice)
        fates = {}
        for name, corpus in (("train", recipe.data.train), ("valid", recipe.data.valid)):
            if corpus is not None:
                notice(f"encoding {name}: {', '.join(str(path) for path in corpus_files(corpus, root))}")
                fates[name] = _encode(recipe, corpus, root, tokeniser, work / f"{name}.arrow", training=name == "train")
        told = {name: asdict(fate) for name, fate in fates.items()}
        digests = prepared_files(work)
        accept(digests)
        write_json(work / MANIFEST, {"digest": wanted, "files": digests, "fates": told})
        folder.mkdir(exist_ok=True)
        for name in (MANIFEST, *OUTPUTS):
            (folder / name).unlink(missing_ok=True)
        for name in (*sorted(digests), MANIFEST):
            (work / name).rename(folder / name)
    except OSError as error:
        raise OutputError(cannot_write(folder, error)) from None
    finally:
        shutil.rmtree(folder.with_name(f".{folder.name}.partial"), ignore_errors=True)
    return _load(recipe, folder, fates, fresh=True)


def _learn(recipe: Recipe, root: Path, folder: Path, notice: Notice) -> Tokeniser:
    assert recipe.data.train is not None
    notice(f"learning {recipe.subword.kind} pieces ({recipe.subword.vocabulary_size})")
    corpus = recipe.data.train
    tokeniser = learn_tokeniser(
        (pair.source for pair in read_pairs(corpus, root)),
        (pair.target for pair in read_pairs(corpus, root)),
        recipe.subword,
        source_eos=recipe.model.source_eos,
        seed=recipe.training.seed,
    )
    write_tokeniser(folder, tokeniser)
    return tokeniser


def _encode(recipe: Recipe, corpus: CorpusConfig, root: Path, tokeniser: Tokeniser, path: Path, *, training: bool) -> Fate:
    fate = Fate()
    limit = recipe.data.max_length
    end = tokeniser.encode_source("")

    def encoded() -> Iterator[EncodedPair]:
        pairs = enumerate(read_pairs(corpus, root), start=1)
        while chunk := list(islice(pairs, CHUNK)):
            sources = tokeniser.source.encode_many([pair.source for _, pair in chunk])
            targets = tokeniser.target.encode_many([pair.target for _, pair in chunk])
            for (line, pair), source, target in zip(chunk, sources, targets, strict=True):
                kept = _fit(pair, source, target, fate, limit, recipe.data.over_long, training=training)
                if kept is not None:
                    fate.kept += 1
                    fate.source_tokens += len(kept[0]) + len(end)
                    fate.target_tokens += len(kept[1]) + 1
                    yield kept[0] + end, kept[1], line

    if write_corpus(path, encoded()) == 0:
        files = " and ".join(str(name) for name in corpus_files(corpus, root))
        raise DataError(f"{files}: no pair is left ({'; '.join(fate.sentences('drop')) or 'the corpus is empty'})")
    return fate


def _fit(
    pair: Pair, source: list[int], target: list[int], fate: Fate, limit: int, over_long: str, *, training: bool
) -> tuple[list[int], list[int]] | None:
    """The pair as it goes on, or None where it is dropped; `fate` is told either way. Room is left for the end token."""
    if not source or not target:
        fate.empty += 1
        fate.empty_at += [pair.origin][: NAMED_LINES - len(fate.empty_at)]
        return None
    longest = max(len(source), len(target)) + 1
    if longest <= limit or not training:
        return source, target
    if over_long == "refuse":
        raise DataError(
            f"{pair.origin}: {longest} tokens, more than data.max_length = {limit}; raise it, or set data.over_long "
            "to 'drop' or 'truncate'"
        )
    fate.over_long += 1
    fate.over_long_at += [pair.origin][: NAMED_LINES - len(fate.over_long_at)]
    return (source[: limit - 1], target[: limit - 1]) if over_long == "truncate" else None


def _load(recipe: Recipe, folder: Path, fates: dict[str, Fate], *, fresh: bool) -> Prepared:
    valid = Corpus(folder / "valid.arrow") if recipe.data.valid is not None else None
    tokeniser = read_tokeniser(folder, recipe.subword, source_eos=recipe.model.source_eos)
    return Prepared(tokeniser, Corpus(folder / "train.arrow"), valid, fates, fresh)


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """What `prepared.json` tells; none where there is none, or one that cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
        fates = {name: Fate(**fate) for name, fate in found["fates"].items()}
        return {"digest": found["digest"], "files": found["files"], "fates": fates}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def prepared_files(folder: Path) -> dict[str, str]:
    """The digest of each prepared file in a folder."""
    digests = {}
    for name in OUTPUTS:
        if (folder / name).is_file():
            with (folder / name).open("rb") as stream:
                digests[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def _digest(recipe: Recipe, root: Path) -> str:
    """Of the settings and the bytes that prepared files depend on."""
    settings = {
        "data": recipe.data.model_dump(exclude={"root", "test"}),
        "subword": recipe.subword.model_dump(),
        "source_eos": recipe.model.source_eos,
        "seed": recipe.training.seed,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for corpus in (recipe.data.train, recipe.data.valid):
        for path in corpus_files(corpus, root) if corpus is not None else ():
            try:
                with path.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
            except OSError as error:
                raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()
