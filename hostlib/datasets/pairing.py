"""Match a run's model and data set."""

from __future__ import annotations

import torch
from torch import nn

from hostlib.datasets.batches import Split, digits
from hostlib.datasets.dataset import Dataset
from hostlib.errors import ContentsError, ModelError
from hostlib.models.inspection import dtype_of, input_of, output_shape
from hostlib.models.loading import describe, load_model
from hostlib.models.zoo.catalogue import is_factory

# Normalise each example by itself: batch statistics would differ between ranks (see hostlib.models.small).
NORM = "group"


def load_fitting(text: str, data: Dataset) -> nn.Module:
    """Build a model for a data set, freshly initialised; a zoo network is adapted to its images and classes.

    Raises:
        UnknownNameError: there is no such model.
        ModelError: the model does not fit the data; the message says what is legal.
    """
    if data.shape is None or data.classes is None:
        return load_model(text, norm=NORM)
    described = f"{data.name} has images of {describe(data.shape)} in {data.classes} classes"
    legal = "--data synthetic fits any model"
    try:
        model = load_model(text, data.shape, classes=data.classes, norm=NORM)
    except ModelError as error:
        raise error if is_factory(text) else ModelError(f"{error}; {described}, {legal}") from error
    if not is_factory(text):
        return model
    try:
        outputs = output_shape(model, data.shape)
    except ContentsError:
        return model  # cannot be inspected; the first step will show whether it fits
    except ModelError as error:
        raise ModelError(f"{text} does not fit: {error}; {described}, {legal}") from error
    if len(outputs) != 1 or outputs[0] < data.classes:
        raise ModelError(f"{text} does not fit: it returns {describe(outputs)} numbers; {described}, {legal}")
    return model


def shape_for(data: Dataset, model: nn.Module) -> tuple[int, ...]:
    """Shape of one example as the model gets it."""
    return data.shape or input_of(model)


def load_data(data: Dataset, model: nn.Module, seed: int) -> Split:
    """Load the data set, split for training and testing; synthetic data has the model's input shape and classes.

    Raises:
        RunError: its files, or scikit-learn, are missing or damaged.
        ModelError: the model rejects the input shape that it declares.
    """
    if data.name == "digits":
        return digits(seed)
    if data.name == "synthetic":
        return _synthetic(model, data.examples, seed)
    if data.name == "images":
        from hostlib.datasets.image_folder import image_folder

        return image_folder(data.folder, input_of(model), _classes(model), data.examples, seed)
    from hostlib.datasets.image_files import cifar10, mnist

    return mnist(data.folder) if data.name == "mnist" else cifar10(data.folder)


def _classes(model: nn.Module) -> int:
    try:
        return getattr(model, "classes", None) or int(output_shape(model, input_of(model))[-1])
    except ContentsError as error:
        raise ModelError(f"{error}; set the model's attribute classes to their number") from error


def _synthetic(model: nn.Module, examples: int, seed: int) -> Split:
    from hostlib.datasets.synthetic import synthetic_images, synthetic_tokens

    shape, classes = input_of(model), _classes(model)
    if dtype_of(model) == torch.int64:
        return synthetic_tokens(shape[0], classes, examples, seed)
    return synthetic_images(shape, classes, examples, seed)
