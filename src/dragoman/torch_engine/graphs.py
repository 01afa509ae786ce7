"""CUDA graphs of work on static tensors, which replace hundreds of kernel launches by one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

WorkFn = Callable[[], None]
RecordFn = Callable[[WorkFn], WorkFn]
"""(work on static tensors) → a function with the same effect"""

# A process records one graph at a time.
CAPTURE_LOCK = threading.Lock()


class CudaGraphRecorder:
    """Recorder of graphs on one GPU.

    All graphs share the memory of their intermediate results, so they must follow each other on one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: WorkFn) -> WorkFn:
        return CudaGraph(work, self)


class CudaGraph:
    """Work that is recorded as a graph.

    The first call runs the work on the recording stream, so that libraries initialize themselves. The second call records
    the kernels and runs them. All later calls replay them.
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
        # Other threads may use the GPU during the recording, for instance to copy the next batch.
        capture = torch.cuda.graph(graph, pool=self.recorder.pool, stream=stream, capture_error_mode="thread_local")
        with CAPTURE_LOCK, torch.cuda.device(stream.device), capture:
            self.work()
        return graph
