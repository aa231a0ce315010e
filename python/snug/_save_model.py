"""Models of transformers are saved compressed, or plain and then without a mark in config.json."""

import functools
import inspect
import os
import re
import tempfile

from . import saving
from ._library import CODECS, number_of, threads_of
from ._mark import is_marked
from .torch.model import dense_state_dict, has_compressed

_WEIGHTS = r"model({0}(-\d{{5}}-of-\d{{5}})?\.safetensors|\.safetensors\.index{0}\.json)"


def as_plain(save):
    """model.save_pretrained, for models whose config was read from a compressed folder, and for
    those that compress_model has changed."""
    signature = inspect.signature(save)

    @functools.wraps(save)
    def save_plain(model, *args, **kwargs):
        given = signature.bind(model, *args, **kwargs).arguments
        # A quantizer of Snug restores the weights itself.
        if (given.get("state_dict") is None and getattr(model, "hf_quantizer", None) is None
                and has_compressed(model)):
            kwargs["state_dict"] = dense_state_dict(model)
        if not is_marked(model.config):
            return save(model, *args, **kwargs)
        mark = model.config.quantization_config
        del model.config.quantization_config
        try:
            return save(model, *args, **kwargs)
        finally:
            model.config.quantization_config = mark  # the config may serve from_pretrained again
    return save_plain


def save_pretrained(model, save_directory, codec="entropy", threads=0, **options):
    """What model.save_pretrained(save_directory, **options) does, but compressed.

    The plain folder is written into save_directory first, under a temporary name, so the disk must
    have room for both.
    """
    settings = number_of(CODECS, codec, "codec"), threads_of(threads)
    if options.get("push_to_hub"):
        raise ValueError("save_pretrained of Snug writes to a folder only: upload it afterwards")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError("the model has adapters: use model.save_pretrained, which writes these "
                         "alone")
    is_quantized = getattr(model.config, "quantization_config", None) is not None
    if is_quantized and not is_marked(model.config):
        raise ValueError("the model is quantized, and transformers could not load it compressed: "
                         "use model.save_pretrained")
    if os.path.isfile(save_directory):
        raise NotADirectoryError(f"{save_directory} is a file: give the name of a folder")
    os.makedirs(save_directory, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".snug-", dir=save_directory) as scratch:
        plain, packed = os.path.join(scratch, "plain"), os.path.join(scratch, "packed")
        model.save_pretrained(plain, **options)
        if not options.get("is_main_process", True) or not os.listdir(plain):
            return  # the main process writes the folder
        saving.compress_path(os.fsencode(plain), os.fsencode(packed), *settings)
        names = os.listdir(packed)
        for name in sorted(names, key=lambda name: name == "config.json"):  # it names the method
            os.replace(os.path.join(packed, name), os.path.join(save_directory, name))
    own = re.compile(_WEIGHTS.format(re.escape("." + options["variant"])
                                     if options.get("variant") else ""))
    for name in os.listdir(save_directory):
        if own.fullmatch(name) and name not in names:  # of an earlier model
            os.remove(os.path.join(save_directory, name))
