"""Work on fixed tensors as CUDA graphs: one request to the GPU where there were hundreds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

WorkFn = Callable[[], None]
RecordFn = Callable[[WorkFn], WorkFn]
"""(work that reads and writes the same tensors each time) → the same, done in some other way."""

# A process records no more than one graph at a time.
CAPTURE_LOCK = threading.Lock()


class CudaGraphRecorder:
    """Makes graphs out of work, on one GPU.

    What they hold between reading and writing lies in memory that all share, so they must follow one another on one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: WorkFn) -> WorkFn:
        return CudaGraph(work, self)


class CudaGraph:
    """The first call does the work as it is, on the stream that will be listened to, so that libraries make themselves ready.

    The second listens to it, which does nothing but note kernels down, and has them run; all others have them run once more.
    """

    def __init__(self, work: WorkFn, recorder: CudaGraphRecorder) -> None:
        self.work = work
        self.recorder = recorder
        self.is_warm = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self.is_warm:
            self._warm_up()
            return
        if self.graph is None:
            self.graph = self._capture()
        self.graph.replay()

    def _warm_up(self) -> None:
        current_stream = torch.cuda.current_stream(self.recorder.stream.device)
        self.recorder.stream.wait_stream(current_stream)
        with torch.cuda.stream(self.recorder.stream):
            self.work()
        current_stream.wait_stream(self.recorder.stream)
        self.is_warm = True

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        stream = self.recorder.stream
        # What other threads ask of the GPU meanwhile, copies of the next batch say, is no fault.
        capture = torch.cuda.graph(graph, pool=self.recorder.pool, stream=stream, capture_error_mode="thread_local")
        with CAPTURE_LOCK, torch.cuda.device(stream.device), capture:
            self.work()
        return graph
