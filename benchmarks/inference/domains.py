"""English sentences of three domains that a model of captions reads: captions, help texts and everyday sentences."""

from __future__ import annotations

import random
from pathlib import Path

from .captions import read_gzip_lines


def read_domains(shared: Path, num_lines: int) -> dict[str, list[str]]:
    """Return the source lines of each domain: a fifth of captions, and two fifths of help texts and of everyday sentences.

    shared: folder of the real corpora
    num_lines: lines of all domains together; a domain has fewer if its files have no more

    The captions are those of the development and the test set. The other lines are drawn from the training sets.
    """
    captions = [
        line
        for name in ("test_2016_flickr.en.gz", "val.en.gz")
        for line in read_gzip_lines(shared / "multi30k" / "raw" / name)
        if line.strip()
    ]
    domains = {"captions": captions[: max(1, num_lines // 5)]}
    for domain, folder in (("help", "libreoffice-help"), ("general", "tatoeba")):
        rows = read_gzip_lines(shared / folder / "en-de" / "train.tsv.gz")
        sources = sorted({row.partition("\t")[0] for row in rows if row.strip()})
        count = max(1, (num_lines - len(domains["captions"])) // 2)
        domains[domain] = random.Random(domain).sample(sources, min(count, len(sources)))
    return domains
