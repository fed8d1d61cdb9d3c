"""More numbers from papers, as printed; those that came first are in simulation/models/published_times.py."""

from __future__ import annotations

# ---- "How to Train your DNN: The Network Operator Edition" -----------------------------------------------------------

# Table 1, measured by the paper: seconds with 1, 2, 4, 8 servers; 8 workers.
TABLE_1_REAL = {
    "vgg16": (22.5, 22.8, 20.8, 19.3),
    "inception3": (2.16, 2.16, 1.49, 1.3),
    "resnet200": (5.89, 2.3, 1.71, 1.71),
    "resnet101": (3.7, 1.58, 0.855, 0.9),
}

# Table 2: weights, Gbit, FLOPs of one image.
TABLE_2 = {
    "inception3": (2.5e6, 0.715, 1.1e10),
    "vgg16": (1.9e8, 6.58, 5.4e10),
    "resnet101": (2.2e6, 1.42, 1.3e10),
    "resnet200": (2.2e6, 2.06, 2.8e10),
}

# Table 3: seconds on a link at 25 Gbit/s, and the backward pass's computing over them.
TABLE_3 = {
    "inception3": (0.028, 10.6),
    "vgg16": (0.263, 0.09),
    "resnet101": (0.052, 3.46),
    "resnet200": (0.082, 4.14),
}

# Section 8.3: how many times as fast as multicast with aggregation VGG-16's ring is, by workers ("nearly 2x", "1.3x").
FIGURE_8_RING_GAIN = {4: 2.0, 32: 1.3}

# ---- RALP ----------------------------------------------------------------------------------------------------------

RALP_MODELS = ("alexnet", "googlenet", "inception3", "lenet", "overfeat", "resnet50", "vgg11", "vgg19")

# Table 1: skewness factors.
RALP_1 = {
    "alexnet": -2.27,
    "googlenet": -0.74,
    "inception3": -0.96,
    "lenet": -1.16,
    "overfeat": -2.11,
    "resnet50": -1.26,
    "vgg11": -3.62,
    "vgg19": -3.02,
}

# Table 4: images per second of four VGG11 jobs and of four ResNet-50 jobs that share the machines, if VGG11 has this scheme
# and ResNet-50 the other.
RALP_4 = {
    ("ralp/ps", "vgg11"): 605.2,
    ("ralp/ps", "resnet50"): 384.3,
    ("ps", "vgg11"): 122.9,
    ("ps", "resnet50"): 352.1,
}

# Section 3. Figure 2: communication's share of a step, on average over the networks, by workers and servers. Figure 3: how
# many times as long LeNet's step takes beside seven others. Figure 4: how many networks have more than 86 % of their
# parameters in the last quarter of their layers, and the convolutions' share of the time on average.
RALP_FIGURE_2 = {1: 0.53, 4: 0.58}
RALP_FIGURE_3_LENET = 7.0
RALP_FIGURE_4_SKEWED, RALP_FIGURE_4_SHARE, RALP_FIGURE_4_CONV = 5, 0.86, 0.80

# ---- Poseidon ------------------------------------------------------------------------------------------------------

# Table 3: parameters and batch sizes. CIFAR-10 quick is Caffe's.
POSEIDON_3 = {
    "googlenet": (5e6, 128),
    "inception3": (27e6, 32),
    "vgg19": (143e6, 32),
    "vgg19_22k": (229e6, 32),
    "resnet152": (60.2e6, 32),
}

# Section 5.1: images per second of one node with Caffe, and with parameter servers on it, which copies cost.
POSEIDON_CAFFE = {"googlenet": (257.0, 213.3), "vgg19": (35.5, 21.3), "vgg19_22k": (34.6, 18.5)}
POSEIDON_TENSORFLOW = {"inception3": 43.2, "vgg19": 38.5, "vgg19_22k": 34.8}
# Speed-ups of TensorFlow itself on Inception-V3, 32 nodes: 10 in section 5.1, 20 in the introduction.
POSEIDON_6_TENSORFLOW = 10.0
POSEIDON_9_NODES_32 = 31.0
# Section 5.3: CNTK's speed-ups with one bit per gradient on VGG19, by nodes.
POSEIDON_ONE_BIT = {8: 5.8, 16: 11.0, 32: 20.0}

# ---- CGDP ----------------------------------------------------------------------------------------------------------

# Table 1: layers, millions of parameters, examples per GPU.
CGDP_1 = {"alexnet": (8, 60, 256), "googlenet": (22, 7, 64), "vgg16": (16, 138, 32), "resnet152": (152, 49, 12)}
# Table 2: milliseconds of one iteration of AlexNet on four GPUs, of Caffe and of CGDP, phase by phase.
CGDP_2_CAFFE_MS = {"broadcast": 20.0, "forward": 50.6, "backward": 104.0, "accumulate": 23.0, "update": 5.1}
CGDP_2_TOTAL_MS = {"Caffe": 202.7, "CGDP": 167.1}
# Table 3: layers 8 to 1 of AlexNet: millions of parameters, and milliseconds of the copy to the host, of the sum there and
# of the copy back.
CGDP_3 = {
    "fc8": (4.0, 0.760, 1.263, 1.786),
    "fc7": (16.8, 3.156, 4.441, 2.568),
    "fc6": (37.8, 12.146, 13.074, 5.538),
    "conv5": (0.4, 0.133, 0.285, 0.064),
    "conv4": (0.7, 0.174, 0.465, 0.095),
    "conv3": (0.9, 0.275, 0.578, 0.123),
    "conv2": (0.3, 0.066, 0.155, 0.041),
    "conv1": (0.03, 0.014, 0.018, 0.007),
}
# Section 5.2: CGDP's iteration over Caffe's with four GPUs (figure 6a), minutes of 21,000 iterations of AlexNet with their
# 21 tests of 14.7 s (figure 7a), and Caffe's iteration over CGDP's with chunks on ResNet-152 (figure 8).
CGDP_6_GAIN = {"alexnet": 1.19, "googlenet": 1.04, "vgg16": 1.21}
CGDP_7_ITERATIONS, CGDP_7_TESTS, CGDP_7_TEST_S = 21_000, 21, 14.7
CGDP_7_MINUTES = {"Caffe": 79.0, "CGDP": 62.0}
CGDP_8_GAIN = 1.07
CGDP_8_BEST_CHUNK = {(10, 5): 9, (10, 10): 20}
