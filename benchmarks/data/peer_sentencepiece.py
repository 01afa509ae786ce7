"""SentencePiece's Python API doing the work of `spm_encode`: lines to ids. Arguments: MODEL INPUT OUTPUT."""

import sys
from itertools import islice

import sentencepiece as spm

LINES = 4096


def main() -> None:
    model, source, target = sys.argv[1:]
    processor = spm.SentencePieceProcessor(model_file=model)
    with open(source, encoding="utf-8", newline="\n") as lines, open(target, "w", encoding="utf-8", newline="\n") as written:
        while chunk := [line.rstrip("\n") for line in islice(lines, LINES)]:
            for ids in processor.encode(chunk, num_threads=1):
                written.write(" ".join(map(str, ids)) + "\n")


if __name__ == "__main__":
    main()
