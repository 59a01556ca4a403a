"""Sizes of an encoder, from its configuration alone."""

from dataclasses import dataclass

from torch import nn
from transformers import PretrainedConfig

from raysed.config import EncoderConfig
from raysed.model.pretrained import LOAD_ERRORS, configuration_of, describe_layers, unloadable, without_weights


@dataclass(frozen=True)
class Shape:
    """Sizes of an encoder, without its pooler.

    Attributes:
        products: weights in linear layers, each multiplied once per token.
        layers: number of blocks; 0 for a static model.
        inner: largest dimension of a linear layer: the feed-forward width.
    """

    parameters: int
    products: int
    layers: int
    width: int
    inner: int
    vocabulary: int


def shape_of(config: EncoderConfig) -> Shape:
    """Return the sizes of the configured encoder."""
    found = configuration_of(config)
    if config.static:
        width = config.static.width or found.hidden_size
        return Shape(found.vocab_size * width, 0, 0, width, 0, found.vocab_size)
    if config.keep_layers is not None:
        describe_layers(found, config.keep_layers)
    try:
        return shape_of_model(found, config.trust_remote_code)
    except LOAD_ERRORS as error:
        raise unloadable(config, error) from None


def shape_of_model(found: PretrainedConfig, trust_remote_code: bool = False) -> Shape:
    """Return the sizes of a configuration's architecture.

    >>> from transformers import BertConfig
    >>> shape = shape_of_model(BertConfig())
    >>> shape.parameters, shape.products == 12 * (4 * 768**2 + 2 * 768 * 3072)
    (108891648, True)
    """
    model = without_weights(found, trust_remote_code)
    named = [(name, module) for name, module in model.named_modules() if "pooler" not in name]
    linear = [module for _, module in named if isinstance(module, nn.Linear)]
    return Shape(
        parameters=sum(p.numel() for name, p in model.named_parameters() if "pooler" not in name),
        products=sum(module.weight.numel() for module in linear),
        layers=found.num_hidden_layers,
        width=found.hidden_size,
        inner=max((max(module.weight.shape) for module in linear), default=0),
        vocabulary=found.vocab_size,
    )
