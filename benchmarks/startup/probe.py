"""Process that translates one sentence: `probe.py dragoman|ctranslate2|command MODEL`, with the text as input.

It prints a line of JSON: seconds since the time in the environment variable START, processor seconds, and the peak of its
memory in MiB.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def translate_with_dragoman(bundle: str, text: str) -> str:
    import dragoman

    return dragoman.load(bundle, task="translation", device="cpu").translate([text])[0].text


def translate_with_ctranslate2(model: str, text: str) -> str:
    import ctranslate2
    import sentencepiece

    paths = Path(model) / "source.model", Path(model) / "target.model"  # a joint vocabulary has the first one alone
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(path if path.exists() else paths[0])) for path in paths
    )
    translator = ctranslate2.Translator(model, device="cpu", compute_type="int8")
    result = translator.translate_batch([[*source.encode(text, out_type=str), "</s>"]], beam_size=4, max_decoding_length=30)[0]
    return str(target.decode(result.hypotheses[0]))


def run_command(bundle: str, text: str) -> str:
    program = Path(sys.executable).with_name("dragoman")
    done = subprocess.run([program, "translate", bundle], input=text, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):  # 3: the model does not know the sentence, so its translation has a remark
        sys.exit(done.stderr)
    return done.stdout


SYSTEMS = {"dragoman": translate_with_dragoman, "ctranslate2": translate_with_ctranslate2, "command": run_command}


if __name__ == "__main__":
    translation = SYSTEMS[sys.argv[1]](sys.argv[2], sys.stdin.readline().rstrip("\n"))
    seconds = time.time() - float(os.environ["START"])
    with open("/proc/self/status", encoding="ascii") as status:
        own_peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    own, child = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    is_command = sys.argv[1] == "command"
    processor_seconds = sum(usage.ru_utime + usage.ru_stime for usage in ((child,) if is_command else (own, child)))
    result = {"seconds": seconds, "processor_seconds": processor_seconds, "peak": max(own_peak, child.ru_maxrss) / 1024}
    print(json.dumps({**result, "translation": translation}))
