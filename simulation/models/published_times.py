"""Numbers from papers, as printed.

Sources:

- "How to Train your DNN: The Network Operator Edition" (Tables 1, 3, 4, 6 to 10 and the text of sections 8.2.1 and
8.6);
- "RALP", Tables 2 to 4;
- "Poseidon", Table 1 and the text of its introduction and section 5;
- "Involving CPUs into Multi-GPU Deep Learning" (CGDP), Tables 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """One number; `published` is None if the paper does not print it (its figures)."""

    table: str
    row: str
    column: str
    published: float | None
    simulated: float
    kind: str = "predicted"

    @property
    def error(self) -> float | None:
        return None if not self.published else self.simulated / self.published - 1


MODELS = {"inception3": "Inception-v3", "vgg16": "VGG-16", "resnet101": "Resnet-101", "resnet200": "Resnet-200"}
PIXELS = 299

# Table 3: seconds of the forward pass, and of the backward pass except for the layer that comes first in it.
COMPUTE_S = {
    "inception3": (0.176, 0.296),
    "vgg16": (0.169, 0.024),
    "resnet101": (0.176, 0.180),
    "resnet200": (0.357, 0.340),
}

# Table 1, simulated by the paper: seconds with 1, 2, 4, 8 servers; 8 workers.
TABLE_1 = {
    "vgg16": (21.0, 22.5, 19.3, 18.2),
    "inception3": (2.29, 2.29, 1.37, 0.852),
    "resnet200": (7.15, 3.34, 2.3, 2.29),
    "resnet101": (4.57, 2.37, 1.52, 1.5),
}

# Tables 4 and 6: speed-up over one parameter server; 32 workers, 25 Gbit/s.
TABLE_4 = {
    "inception3": (1.34, 1.69, 3.28),
    "vgg16": (1.89, 1.94, 22.0),
    "resnet101": (1.65, 1.79, 6.07),
    "resnet200": (1.65, 1.85, 6.7),
}
TABLE_6 = {
    "vgg16": (24.6, 24.6, 11.3),
    "resnet200": (6.75, 6.76, 6.79),
    "resnet101": (6.55, 6.71, 6.46),
    "inception3": (3.35, 3.41, 3.41),
}

# Table 7: shares of the least and the most loaded server, as printed.
TABLE_7 = {
    (4, "vgg16"): ("0.00004", "0.918"),
    (8, "vgg16"): ("0.00001", "0.859"),
    (4, "inception3"): ("0.0007", "0.451"),
    (8, "inception3"): ("0.0003", "0.292"),
    (4, "resnet200"): ("0.165", "0.33"),
    (8, "resnet200"): ("0.002", "0.22"),
}

# Table 8: seconds.
TABLE_8 = {
    "vgg16": (0.765, 0.539, 0.683),
    "resnet200": (0.830, 0.820, 0.824),
    "resnet101": (0.598, 0.551, 0.556),
    "inception3": (0.569, 0.549, 0.562),
}

# Table 9: seconds of two iterations.
TABLE_9 = {
    "vgg16": (1.53, 1.37, 1.76),
    "resnet200": (1.65, 1.65, 1.65),
    "resnet101": (1.17, 1.13, 1.08),
    "inception3": (1.14, 1.13, 0.988),
}

# Table 10: seconds with aggregation, with block distribution, by Gbit/s.
TABLE_10 = {
    ("inception3", 10): (2.99, 3.1),
    ("vgg16", 10): (22.3, 21.7),
    ("resnet101", 10): (4.9, 4.94),
    ("resnet200", 10): (7.77, 7.79),
    ("inception3", 100): (0.71, 0.77),
    ("vgg16", 100): (2.23, 2.27),
    ("resnet101", 100): (0.89, 0.94),
    ("resnet200", 100): (1.19, 1.45),
}

# Section 8.1.1: seconds of the toy example, together and staggered.
FIGURE_2 = {"without": (21.0, 21.0), "with": (12.0, 15.0)}

# Text: seconds of VGG-16's ring without messages at 10 Gbit/s; speed-ups of Resnet-200 at three times the speed.
RING_WHOLE_S = 34.0
FASTER_RESNET_200 = {"butterfly": 10.0, "multicast + aggregation": 19.5}

# RALP, Table 2: GB of the model, of Horovod's step, of RALP's step.
RALP_2 = {"alexnet": (0.23, 3.23, 0.47), "inception3": (0.09, 1.24, 1.30), "vgg11": (0.50, 6.93, 0.64)}
RALP_BATCH = {"alexnet": 512, "inception3": 32, "vgg11": 64}
RALP_MACHINES = 8

# RALP, Tables 3 and 4: images per second of all jobs of a kind together; each job has three workers and a server.
# (model, jobs, other jobs' model or None): (with parameter servers, with RALP)
RALP_3 = {
    ("vgg11", 8): (91.3, 651.8),
    ("vgg11", 4): (120.6, 592.2),
    ("resnet50", 4): (351.9, 386.9),
    ("resnet50", 8): (400.5, 409.8),
}
RALP_3_BATCH = 64  # of tf_cnn_benchmarks, for both

# CGDP, Tables 2 and 3 (AlexNet, four GPUs, batches of 256): milliseconds of both passes under its training; of all layers,
# the copies to the host, accumulation there, and the copies back; microseconds that the backward pass did not hide.
CGDP_2_MS = {"forward": 51.0, "backward": 111.0}
CGDP_2_LEFT_US = 21.8
CGDP_3_MS = {"copies": 16.724, "accumulation": 20.279, "back": 10.222}
CGDP_GPUS, CGDP_BATCH = 4, 256

# Poseidon, section 5: images per second of one node, and batch sizes (Table 3).
POSEIDON_IMAGES_S = {
    ("Caffe", "vgg19"): 35.5,
    ("Caffe", "vgg19_22k"): 34.6,
    ("TensorFlow", "inception3"): 43.2,
    ("TensorFlow", "vgg19"): 38.5,
    ("TensorFlow", "vgg19_22k"): 34.8,
}
POSEIDON_BATCH = 32
# Speed-ups that its text states: (engine, model, Gbit/s, nodes, how): times.
POSEIDON_8 = {
    ("Caffe", "vgg19", 10, 16, "WFBP"): 8.0,
    ("Caffe", "vgg19_22k", 10, 16, "WFBP"): 4.0,
    ("Caffe", "vgg19_22k", 10, 16, "Poseidon"): 15.5,
    ("Caffe", "vgg19_22k", 40, 32, "WFBP"): 21.5,
    ("Caffe", "vgg19_22k", 40, 32, "Poseidon"): 29.5,
    ("TensorFlow", "vgg19_22k", 40, 32, "WFBP"): 22.0,
    ("TensorFlow", "vgg19_22k", 40, 32, "Poseidon"): 30.0,
    ("TensorFlow", "inception3", 40, 32, "Poseidon"): 31.5,
    ("TensorFlow", "vgg19", 40, 8, "Adam"): 5.0,
}


def poseidon_1(m: int, n: int, k: int, workers: int, servers: int) -> dict[tuple[str, str], float]:
    """Poseidon, Table 1: parameters through a node for an M x N layer, batch K, with P1 workers and P2 servers."""
    whole, factors = m * n, k * (m + n)
    return {
        ("PS", "Server"): 2 * workers * whole / servers,
        ("PS", "Worker"): 2 * whole,
        ("PS", "Server & Worker"): 2 * whole * (workers + servers - 2) / servers,
        ("SFB", "Worker"): 2 * (workers - 1) * factors,
        ("Adam (max)", "Server"): workers * whole + workers * factors,
        ("Adam (max)", "Worker"): factors + whole,
        ("Adam (max)", "Server & Worker"): (workers - 1) * (whole + factors),
    }
