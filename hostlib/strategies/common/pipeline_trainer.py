"""Pipelines on real processes: torch.distributed.pipelining's schedules, over Gloo.

Every rank traces the model, rank 0 measures its layers and tells all where to cut. A rank keeps the weights of its own
layers; the others' come back in `whole`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from hostlib.errors import HostlibError
from hostlib.pipelines.bubble import bubble_share
from hostlib.pipelines.layer_profile import describe_stages, measured_layers
from hostlib.pipelines.model_chain import ModelChain
from hostlib.pipelines.partitioner import Link, partition
from hostlib.pipelines.pipeline_options import AnyPipelineOptions, microbatch_size, placement, worker_of
from hostlib.pipelines.stage_module import StageModule
from hostlib.pytorch.ddp_hook import HookState
from hostlib.pytorch.step_times import StepTimes
from hostlib.strategies.common.buckets import MIB, Averages, filled
from hostlib.strategies.trainer import TrainerContext

CPU = torch.device("cpu")
PROBE_BYTES = (4096, 4 * MIB)  # for latency and bandwidth
PROBES = 5


class PipelineTrainer:
    """A rank's training steps in a pipeline.

    Args:
        name: of the strategy, which is that of the schedule.

    Raises:
        HostlibError: the model cannot be cut into so many stages; the message says why.
    """

    def __init__(self, name: str, context: TrainerContext, options: AnyPipelineOptions) -> None:
        ranks = context.rank_context
        self._context, self._options, self._rank = context, options, ranks.rank
        self._model = context.model
        self._place = placement(ranks.rank, ranks.world_size, options.stages)
        self.state = HookState(context.sums)
        self._averages = Averages(self.state)
        timeout = timedelta(seconds=ranks.deadline_s)
        replicas = [
            [worker_of(stage, replica, self._place.replicas) for stage in range(options.stages)]
            for replica in range(self._place.replicas)
        ]
        self._pipeline = replicas[self._place.replica]
        # Each rank of the job has to take part in making every group.
        self._group = [dist.new_group(each, timeout) for each in replicas][self._place.replica]
        like = context.example()
        size = microbatch_size(options, context.batch_size)
        example = torch.empty(size, *like.shape[1:], dtype=like.dtype, device="meta")
        self._parts = options.stages * options.chunks
        self._heard = time.monotonic()
        self._chain = ModelChain(self._model, example, self._parts)
        self._cuts = self._agreed_cuts(example)
        self._owners = self._owners_of_state()
        self._stages, self._kept = self._own_stages()
        self._optimiser = context.optimiser(self._kept) if self._kept else None
        self._buckets = filled(list(reversed(self._kept)), context.bucket_mb * MIB)
        self._shared = self._shared_parameters(replicas, timeout)
        self._drop_others()
        self._schedule = self._make_schedule(name)

    @property
    def notes(self) -> dict[str, Any]:
        options = self._options
        return {
            "stages": " | ".join(describe_stages(self._chain, self._cuts)),
            "replicas": self._place.replicas,
            "bubble": round(bubble_share(options.stages, options.microbatches, options.chunks), 4),
        }

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        """Train on the pipeline's batch, which each of its ranks has; returns the pipeline's loss."""
        for parameter in self._kept:
            parameter.grad = None
        self.state.step = StepTimes(backward_begin_ns=time.perf_counter_ns())
        losses: list[Tensor] = []
        first, last = self._place.stage == 0, self._place.stage == self._options.stages - 1
        try:
            self._schedule.step(
                *((inputs,) if first else ()),
                target=labels if last else None,
                losses=losses if last else None,
                return_outputs=False,
            )
        except RuntimeError as error:  # torch describes all tensors, at length, and then gives the cause
            raise error.__cause__ or error from None
        self.state.step.backward_ended()
        self._sum_gradients()
        if self._optimiser is not None:
            self._optimiser.step()
        loss = torch.stack([each.detach() for each in losses]).sum().float() if last else torch.empty(())
        dist.broadcast(loss, self._pipeline[-1], self._group)
        return float(loss)

    def whole(self) -> nn.Module:
        for name, owner in self._owners.items():
            path, _, attribute = name.rpartition(".")
            module = self._model.get_submodule(path)
            value: Tensor = getattr(module, attribute)
            if value.is_meta:
                value = nn.Parameter(torch.empty_like(value, device=CPU), value.requires_grad)
                self._replace(module._parameters[attribute], value)
            whole = value.detach().contiguous()
            dist.broadcast(whole, owner)
            with torch.no_grad():
                value.data.copy_(whole)
        return self._model

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        """Do nothing: the collective's creator closes it, and the groups end with the process."""

    # ---- set-up ------------------------------------------------------------------------------------------------------

    def _agreed_cuts(self, example: Tensor) -> tuple[int, ...]:
        """Where rank 0's measurements cut the chain. Everybody gets its error, if there is one."""
        link = self._measured_link()
        told: list[Any] = [None]
        if self._rank == 0:
            try:
                costs = measured_layers(
                    self._chain, torch.zeros_like(example, device=CPU), after_each=self._sign_of_life
                )
                told = [partition(costs, self._parts, link).cuts]
            except HostlibError as error:
                told = [str(error)]
            dist.broadcast_object_list(told, 0)
        while told[0] is None:
            dist.broadcast_object_list(told, 0)
        if isinstance(told[0], str):
            raise HostlibError(told[0])
        cuts: tuple[int, ...] = told[0]
        return cuts

    def _sign_of_life(self) -> None:
        """Let the others wait on, before their deadline, while rank 0 measures a large model."""
        if time.monotonic() - self._heard > self._context.rank_context.deadline_s / 4:
            dist.broadcast_object_list([None], 0)
            self._heard = time.monotonic()

    def _measured_link(self) -> Link:
        """The way between the first two stages, as ranks 0 and the next one measure it; others learn nothing."""
        if self._place.replica or self._place.stage > 1:
            return Link()
        there = self._pipeline[1 - self._place.stage]
        fastest_ns = []
        for size in PROBE_BYTES:
            values, lapses_ns = torch.zeros(size, dtype=torch.uint8), []
            for _ in range(PROBES):
                began_ns = time.perf_counter_ns()
                if self._place.stage == 0:
                    dist.send(values, there, self._group)
                    dist.recv(values, there, self._group)
                else:
                    dist.recv(values, there, self._group)
                    dist.send(values, there, self._group)
                lapses_ns.append((time.perf_counter_ns() - began_ns) / 2)
            fastest_ns.append(min(lapses_ns))
        small, large = fastest_ns
        return Link(PROBE_BYTES[1] / max(1.0, large - small), small)

    def _bounds(self) -> list[tuple[int, int]]:
        """First and last layer of each part of the model."""
        return list(pairwise((0, *self._cuts, len(self._chain))))

    def _owners_of_state(self) -> dict[str, int]:
        """The rank that has each entry of the model's state; one that no layer uses is everybody's own, as rank 0's."""
        rank_of: dict[int, int] = {}
        for part, (first, end) in enumerate(self._bounds()):
            owner = worker_of(part % self._options.stages, 0, self._place.replicas)
            module = self._chain.piece(first, end).module
            for tensor in (*module.parameters(), *module.buffers()):
                rank_of.setdefault(id(tensor), owner)
        state = self._model.state_dict(keep_vars=True)
        return {name: rank_of.get(id(value), 0) for name, value in state.items() if isinstance(value, Tensor)}

    def _own_stages(self) -> tuple[list[PipelineStage], list[nn.Parameter]]:
        """This rank's stages, as torch has them, and the trained parameters that they use."""
        stages: list[PipelineStage] = []
        kept: dict[int, nn.Parameter] = {}
        for part, (first, end) in enumerate(self._bounds()):
            if part % self._options.stages != self._place.stage:
                continue
            piece = self._chain.piece(first, end)
            module = StageModule(piece, self._options.recompute)
            kept |= {id(p): p for p in module.parameters() if p.requires_grad}
            stages.append(
                PipelineStage(
                    module,
                    part,
                    self._parts,
                    CPU,
                    # With these, torch need not run the model to learn them.
                    input_args=piece.inputs,
                    output_args=piece.outputs,
                    group=self._group,
                )
            )
        return stages, list(kept.values())

    def _shared_parameters(
        self, replicas: Sequence[Sequence[int]], timeout: timedelta
    ) -> list[tuple[nn.Parameter, Any]]:
        """This rank's parameters that other stages use, too, with the group of those that do.

        As in Megatron, each of them has a copy, and their gradients are summed.
        """
        users: dict[int, set[int]] = {}
        for part, (first, end) in enumerate(self._bounds()):
            for layer in self._chain.layers[first:end]:
                for parameter in layer.parameters:
                    users.setdefault(id(parameter), set()).add(part % self._options.stages)
        shared = []
        for parameter in self._model.parameters():
            stages = sorted(users.get(id(parameter), ()))
            if len(stages) < 2:
                continue
            groups = [dist.new_group([pipeline[stage] for stage in stages], timeout) for pipeline in replicas]
            if self._place.stage in stages:
                shared.append((parameter, groups[self._place.replica]))
        return shared

    def _drop_others(self) -> None:
        """Free the weights that only other stages use."""
        mine = {id(p) for stage in self._stages for p in stage.submod.parameters()}
        for parameter in [p for p in self._model.parameters() if id(p) not in mine]:
            self._replace(parameter, nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad))

    def _replace(self, old: nn.Parameter | None, new: nn.Parameter) -> None:
        """Put a parameter in the place of another one, wherever the model has it."""
        for module in self._model.modules():
            for name, parameter in module._parameters.items():
                if parameter is old:
                    module._parameters[name] = new

    def _make_schedule(self, name: str) -> Any:
        count = self._options.microbatches

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            return self._context.loss(outputs, labels) / count

        # Not torch's scaling: it would divide gradients twice that two stages of a rank have in common.
        if name == "interleaved":
            return ScheduleInterleaved1F1B([*self._stages], count, loss, scale_grads=False)
        kind = Schedule1F1B if name == "1f1b" else ScheduleGPipe
        return kind(self._stages[0], count, loss, scale_grads=False)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _sum_gradients(self) -> None:
        for parameter in self._kept:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for parameter, group in self._shared:
            dist.all_reduce(parameter.grad, group=group)
        if self._place.replicas == 1:
            return
        for number, bucket in enumerate(self._buckets):
            gradients = [p.grad.reshape(-1) for p in bucket if p.grad is not None]
            self._averages.begin(number, torch.cat(gradients))
        for number, bucket in enumerate(self._buckets):
            self._averages.finish(number, bucket)
