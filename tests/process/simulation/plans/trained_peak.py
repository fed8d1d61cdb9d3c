"""Train models in this process and print how much memory that took; forked from one that has loaded torch.

NETFOLD_TEST_HOW and NETFOLD_TEST_CASES, JSON, say what. A case has a model, its batch, and an optimiser. How is one of:

- counted: bytes that torch's allocator handed out, at the peak.
- resident: the process's peak over what it had before, in bytes.
- limited: whether training completes when the process may only allocate the case's `limit` bytes more.
- stage: like counted, of the features of a network as a pipeline's first stage, with so many micro-batches and so many of
  them under way at the same time.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hostlib.models.inspection import example
from hostlib.models.loading import load_model

HOW_VARIABLE, CASES_VARIABLE = "NETFOLD_TEST_HOW", "NETFOLD_TEST_CASES"
M_MMAP_THRESHOLD = -3  # malloc.h
FEW = 2  # examples of the first iteration, which makes the optimiser's state
OPTIMISERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=1e-4),
    "momentum": partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-4),
    "adamw": partial(torch.optim.AdamW, lr=1e-4),
}


def counted(case: dict[str, Any]) -> int:
    return _counted(_train, case)


def stage(case: dict[str, Any]) -> int:
    return _counted(_train_stage, case)


def resident(case: dict[str, Any]) -> int:
    _give_back()
    _train({**case, "batch": FEW})  # loads what torch needs for any training
    gc.collect()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    _train(case)
    return _status("VmHWM") - before


def limited(case: dict[str, Any]) -> bool:
    _give_back()
    # oneDNN keeps its code and its scratch memory, whose size depends on the instructions that the CPU has.
    _train(case)
    gc.collect()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + case["limit"], hard))
    try:
        _train(case)
    except RuntimeError as error:
        # All but the first are what oneDNN says when it gets no memory for a convolution.
        causes = ("can't allocate memory", "could not create a primitive", "could not execute a primitive")
        if not any(words in str(error) for words in causes):
            raise
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return True


def _give_back() -> None:
    """Freed memory goes back to the system from now on, so that the process's peak is what is allocated at that time."""
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16) == 1


def _train(case: dict[str, Any]) -> None:
    model = load_model(case["model"])
    described = example(model, model.input_shape)
    inputs = torch.zeros((case["batch"], *described.shape[1:]), dtype=described.dtype)
    targets = torch.zeros(len(inputs) if inputs.is_floating_point() else inputs.shape, dtype=torch.int64)
    options = {"foreach": True} if case.get("foreach") else {}
    optimiser = OPTIMISERS[case["optimiser"]](model.parameters(), **options)
    for count in (FEW, case["batch"]):
        optimiser.zero_grad()
        outputs = model(inputs[:count])
        nn.functional.cross_entropy(outputs.flatten(0, -2), targets[:count].flatten()).backward()
        del outputs
        optimiser.step()


def _train_stage(case: dict[str, Any]) -> None:
    model = load_model(case["model"])
    features = model.features
    optimiser = OPTIMISERS[case["optimiser"]](features.parameters())
    count, held = case["microbatches"], case["held"]
    inputs = torch.zeros((count, case["batch"], *model.input_shape))
    with torch.no_grad():
        gradients = torch.zeros((count, *features(inputs[0]).shape))
    del model
    for numbers in (range(1), range(count)):
        optimiser.zero_grad()
        under_way: list[Any] = []
        for number in numbers:
            under_way.append(
                checkpoint(features, inputs[number], use_reentrant=False)
                if case["recompute"]
                else features(inputs[number])
            )
            if len(under_way) == held:
                under_way.pop(0).backward(gradients[0])
        while under_way:
            under_way.pop(0).backward(gradients[0])
        optimiser.step()


def _counted(train: Any, case: dict[str, Any]) -> int:
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train(case)
    found = profiler.profiler
    assert found is not None and found.kineto_results is not None
    bytes_ = peak = 0
    open_: list[Any] = []  # the operations under way, outermost first
    for event in sorted(found.kineto_results.events(), key=lambda event: (event.start_ns(), -event.duration_ns())):
        if event.name() != "[memory]":
            open_.append(event)
            continue
        while open_ and open_[-1].start_ns() + open_[-1].duration_ns() < event.start_ns():
            open_.pop()
        # What oneDNN takes by itself during a convolution, with no tensor made for it, depends on the instructions that
        # the CPU has: four times the weights without AVX-512, little with it. It hardly touches that.
        if not open_ or open_[-1].name() not in ("aten::convolution_backward", "aten::mkldnn_convolution"):
            bytes_ += event.nbytes()
            peak = max(peak, bytes_)
    return peak


def _status(key: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    torch.set_num_threads(1)
    how = {"counted": counted, "resident": resident, "limited": limited, "stage": stage}[os.environ[HOW_VARIABLE]]
    print(json.dumps([how(case) for case in json.loads(os.environ[CASES_VARIABLE])]))
