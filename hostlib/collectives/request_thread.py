"""A thread that sums tensors one after the other in the dtypes that they travel in, wherever they are."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from hostlib.errors import HostlibError
from hostlib.staging.device import Device
from hostlib.staging.device_reduction import DeviceReduction
from hostlib.staging.find_device import device_of
from hostlib.staging.request import ReduceRequest, host_request, wire_dtype
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.refusals import refuse

Future = torch.futures.Future[Tensor]


class RequestThread:
    """Gives requests to sum tensors, those of a device in pieces in the host's memory, to a thread.

    Args:
        add: sums a request, and ends it; is given when its tensor was asked for, as time.monotonic().
    """

    def __init__(self, name: str, world_size: int, add: Callable[[ReduceRequest, float], None]) -> None:
        self._world_size, self._add = world_size, add
        self._devices: dict[Device, DeviceReduction] = {}
        self._thread = SerialExecutor(name)

    def allreduce(self, tensor: Tensor, average: bool, future: Future | None = None) -> Future:
        """See hostlib.collectives.collective."""
        future = torch.futures.Future() if future is None else future
        try:
            dtype, device, since = wire_dtype(tensor, average), device_of(tensor), time.monotonic()
            if device is None:
                request = host_request(tensor, dtype, average, future)
                self._thread.put(lambda: self._add(request, since))
            else:
                future = device.future()
                if device not in self._devices:
                    self._devices[device] = DeviceReduction(device, self._world_size, None, lambda codes: None)
                go_on = self._devices[device].ask(tensor, dtype, average, future)
                self._thread.put(lambda: go_on(lambda request: self._add(request, since)))
        except HostlibError as error:
            refuse(future, error)
        return future

    def close(self, patience_s: float) -> None:
        """See SerialExecutor."""
        self._thread.close(patience_s)
