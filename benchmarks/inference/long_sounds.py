"""Time and memory of long sounds: python -m benchmarks.inference.long_sounds SECONDS MODEL-KEY=VALUE …, on one thread."""

import resource
import sys
import time
from pathlib import Path

import torch

from dragoman.config import read_recipe
from dragoman.experiments.ctc.decoder import predict_frames
from dragoman.experiments.frontends.array_text import FIRST_ID
from dragoman.model.factory import build_model

torch.set_num_threads(1)
keys = ["model.decoder=ctc", "model.ctc_upsampling=1", "model.position_encoding=rotary", "training.label_smoothing=0"]
config = read_recipe(Path("speech-digits"), [*keys, *sys.argv[2:]]).model
model = build_model(config, source_vocab_size=260, target_vocab_size=260).eval()
source = torch.randint(FIRST_ID, FIRST_ID + 94, (1, int(sys.argv[1]) * 4000))
start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad():
    model.encoder(source)
    encoded = time.process_time()
    predict_frames(model, source.numpy(), [], 1)
memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
print(f"encoder {encoded - start:.2f} s, whole model {time.process_time() - encoded:.2f} s, {memory} MiB")
