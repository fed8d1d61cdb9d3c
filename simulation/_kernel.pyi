from collections.abc import Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


class Program:
    pass

class Job:
    pass

def program(pieces: int, workers: int, nodes: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], begin: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ops: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], peers: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], piece_bytes: Sequence[int], durations_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], servers_stream: bool) -> Program: ...

def job(workers: int, iterations: int, servers: bool, barrier: bool, pipelined: bool, channels: int, order: int, seed: int, forward_ps: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], backward_ps: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], released: Sequence[Sequence[int]], errands: Sequence[int], asked: Sequence[Sequence[int]], awaited: Sequence[Sequence[int]], slots: int, frame_bytes: int, round_trip_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], request_share: float, padded: bool, opened: int, opened_by_each: int) -> Job: ...

class Kernel:
    def __init__(self, ps_per_byte: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], latency_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], loss: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], nodes: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], programs: Sequence[Program], tensors: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], jobs: Sequence[Job], overhead_ps: int, store_and_forward: bool, store_and_aggregate: bool, turn_bytes: int, window_bytes: int, timeout_ps: int) -> None: ...

    def run(self, events: int) -> bool: ...

    def results(self) -> dict[str, Any]: ...

    def stuck(self) -> list[tuple[int, int, int, int]]: ...
