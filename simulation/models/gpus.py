"""GPUs by name: their published peak rates, and the share of them that training achieves."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.models.layer_info import Family
from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Attributes:
        tflops: peak of dense matrix products in `format`, the format of mixed-precision training, in TFLOP/s. Without
            structured sparsity, accumulated in float32.
        source: where the peak and the memory are published.
        memory_gb: of the smallest variant of that name, in 10^9 bytes.
    """

    name: str
    product: str
    tflops: float
    format: str
    source: str
    memory_gb: int


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "b200", "NVIDIA B200 (HGX)", 2250.0, "BF16", "NVIDIA HGX data sheet: 36 PFLOP/s of eight with sparsity", 180
        ),
        Gpu("h200", "NVIDIA H200 SXM", 989.4, "BF16", "NVIDIA H200 data sheet, half of 1,979 with sparsity", 141),
        Gpu("h100", "NVIDIA H100 SXM", 989.4, "BF16", "NVIDIA H100 data sheet, half of 1,979 with sparsity", 80),
        Gpu("h100-pcie", "NVIDIA H100 PCIe", 756.0, "BF16", "NVIDIA H100 data sheet, half of 1,513 with sparsity", 80),
        Gpu("a100", "NVIDIA A100", 312.0, "BF16", "NVIDIA A100 data sheet", 40),
        Gpu("l40s", "NVIDIA L40S", 362.0, "BF16", "NVIDIA L40S data sheet", 48),
        Gpu("a10", "NVIDIA A10", 125.0, "BF16", "NVIDIA A10 data sheet", 24),
        Gpu("l4", "NVIDIA L4", 121.0, "BF16", "NVIDIA L4 data sheet, half of 242 with sparsity", 24),
        Gpu("t4", "NVIDIA T4", 65.0, "FP16", "NVIDIA T4 data sheet", 16),
        Gpu("v100", "NVIDIA V100 SXM2", 125.0, "FP16", "NVIDIA V100 data sheet", 16),
        Gpu("p100", "NVIDIA P100 SXM2", 10.6, "FP32", "NVIDIA P100 data sheet", 16),
        Gpu("rtx4090", "GeForce RTX 4090", 165.2, "BF16", "NVIDIA Ada architecture white paper", 24),
        Gpu("rtx3090", "GeForce RTX 3090", 71.0, "BF16", "NVIDIA GA102 architecture white paper", 24),
    )
}

# Model FLOPs utilisation: operations of the model (backward twice the forward) over the peak. ResNet-50 at 24.5 GFLOP an
# image: 2,470 images/s on an A100 are 19 %, 1,200 on a V100 24 %.
EFFICIENCY: dict[Family, tuple[float, str]] = {
    "cnn": (0.2, "NVIDIA DeepLearningExamples, ResNet-50 v1.5 in mixed precision: 19 % on A100, 24 % on V100"),
    "transformer": (0.4, "Llama 3 (2024), table 4: 38 to 43 % on H100; PaLM (2022), table 3: 46 %"),
}


def find_gpu(name: str) -> Gpu:
    """A GPU by name.

    Raises:
        SimulationError: it is unknown; the message lists those that are known.
    """
    if name.lower() not in GPUS:
        raise SimulationError(f"unknown GPU {name!r}; legal are {', '.join(GPUS)}; or give --tflops")
    return GPUS[name.lower()]


def achieved(gpu: Gpu, family: Family) -> tuple[float, str]:
    """TFLOP/s that training achieves on a GPU, and how that was found."""
    share, source = EFFICIENCY[family]
    peak = f"{gpu.product}: {gpu.tflops:g} TFLOP/s dense {gpu.format} ({gpu.source})"
    return gpu.tflops * share, f"{peak}, times {share:.0%} ({source})"
