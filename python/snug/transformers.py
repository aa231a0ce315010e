"""transformers loads model folders that `snug compress` wrote.

    import snug.transformers                       # registers quant_method "snug"
    model = AutoModelForCausalLM.from_pretrained("model.snug")

The weights are decoded while they are loaded; the model is the same as from the plain folder. To
keep linear layers and experts compressed on a GPU instead:

    model = AutoModelForCausalLM.from_pretrained(
        "model.snug", quantization_config=snug.transformers.SnugConfig(mode="run"))
    print(model.hf_quantizer.report)               # sizes; which layers stay dense, and why
"""

import dataclasses
import functools
import inspect
import os

try:
    import torch
    import transformers
    from transformers import modeling_utils
    from transformers.core_model_loading import ConversionOps
    from transformers.integrations import deepspeed
    from transformers.modeling_utils import PreTrainedModel
    from transformers.quantizers import auto
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin
    _load = PreTrainedModel._load_pretrained_model
    _load_state_dict = modeling_utils.load_state_dict
    _config_types = auto.LOADING_ATTRIBUTES_CONFIG_TYPES
except (ImportError, AttributeError) as error:
    raise ImportError("snug.transformers needs torch and transformers 5.17 or newer: "
                      f"pip install -U torch transformers ({error})") from None

from ._arrays import DTYPES
from ._mark import FORMAT, check_format
from ._names import is_below
from ._save_model import as_plain, save_pretrained
from .checkpoint import is_compressed, safe_open
from .torch.expert_modules import is_bank
from .torch.model import (Report, compress_model, decompress_model, dense_state_dict,
                          is_cross_attention)

__all__ = ["SnugConfig", "save_pretrained"]

MODES = ("load", "run")
_RUN_ON = {"cuda"}  # devices whose layers mode="run" keeps compressed


@auto.register_quantization_config("snug")
class SnugConfig(QuantizationConfigMixin):
    """How from_pretrained reads a compressed folder.

    mode    "load": exact tensors, on any device. "run": linear layers stay compressed on the GPU.
    policy, batch, fuse, skip: for mode="run", as snug.torch.compress_model takes them.
    """

    def __init__(self, mode="load", policy="memory", batch=1, fuse=True, skip=(), format=FORMAT,
                 quant_method="snug", original_xxh3_128=None):
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; one of: {', '.join(MODES)}")
        check_format(format)
        if isinstance(skip, str):
            raise TypeError(f"skip is a list of names: [{skip!r}]")
        self.quant_method = "snug"
        self.mode, self.policy, self.batch, self.fuse = mode, policy, batch, fuse
        self.skip = list(skip)

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """From the mark in config.json, which may have entries of others."""
        known = inspect.signature(cls).parameters
        return super().from_dict({key: value for key, value in config_dict.items()
                                  if key in known}, **kwargs)

    def get_loading_attributes(self):
        return {key: value for key, value in vars(self).items() if key != "quant_method"}


# Only configurations of these classes may be given beside that of the folder.
auto.LOADING_ATTRIBUTES_CONFIG_TYPES = (*_config_types, SnugConfig)


@auto.register_quantizer("snug")
class SnugQuantizer(HfQuantizer):
    """Has transformers load a model from the decoded tensors, as if the folder was plain."""

    report = None  # of mode="run"

    def __init__(self, quantization_config, **kwargs):
        super().__init__(quantization_config, **kwargs)
        self._runs = quantization_config.mode == "run"
        self._is_loaded = False
        self._layers = {}
        self._tied = set()  # names of parameters that share their memory with others
        self._device_map = {}

    def validate_environment(self, *args, **kwargs):
        if self._runs and "cpu" not in _RUN_ON and not torch.cuda.is_available():
            raise RuntimeError('mode="run" multiplies on a GPU, and torch finds none: use '
                               'mode="load", which runs anywhere')
        if deepspeed.is_deepspeed_zero3_enabled():
            raise RuntimeError("ZeRO-3 of DeepSpeed needs plain files: restore the folder with "
                               "`snug decompress`, or show it as plain with `snug mount`")

    def update_device_map(self, device_map):
        if self._runs and device_map is None and torch.cuda.is_available():
            return {"": torch.cuda.current_device()}
        return device_map

    def update_dtype(self, dtype):
        if self._runs and dtype != torch.bfloat16:
            raise ValueError(f'mode="run" multiplies BF16, not {dtype}: give dtype=torch.bfloat16, '
                             'or use mode="load"')
        return dtype

    def load(self, model, state_dict, checkpoint_files, load_config, *args, **kwargs):
        """In the place of PreTrainedModel._load_pretrained_model."""
        self._is_loaded = True
        if state_dict is None and checkpoint_files and all(map(_is_safetensors, checkpoint_files)):
            device = _only_device(load_config.device_map)
            state_dict, checkpoint_files = _tensors_of(checkpoint_files, device), None
        if not self._runs:
            # Without a quantizer, transformers also compares shapes.
            load_config = dataclasses.replace(load_config, hf_quantizer=None)
            return _load(model, state_dict, checkpoint_files, load_config, *args, **kwargs)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        self._tied, self._device_map = _tied_names(model), load_config.device_map or {}
        self.pre_quantized = False  # it shall call get_quantize_ops
        done = _load(model, state_dict, checkpoint_files, load_config, *args, **kwargs)
        for name, tensor in model.state_dict().items():
            _check_shape(name, tensor, shapes.get(name, tensor.shape))
        self._finish(model)
        return done

    def param_needs_quantization(self, model, param_name, **kwargs):
        """Whether a parameter is to be packed when it has been read."""
        if not self._runs or not param_name.endswith(".weight"):
            return False
        module = model.get_submodule(param_name[:-len(".weight")])
        return (type(module) is torch.nn.Linear and param_name not in _tied_names(model)
                and _device_of(param_name, self._device_map) != "disk")

    def param_element_size(self, model, param_name, param):
        """For transformers, which reserves GPU memory before it loads."""
        return 1.5 if self.param_needs_quantization(model, param_name) else param.element_size()

    def get_quantize_ops(self):
        return _Pack(self)

    def pack(self, model, name, weight):
        """Sets a linear weight, and compresses its neighbours with it if they are complete."""
        layer_name = name[:-len(".weight")]
        layer = model.get_submodule(layer_name)
        _check_shape(name, weight, layer.weight.shape)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        layer.weight._is_hf_initialized = True
        parent_name = layer_name.rpartition(".")[0]
        parent = model.get_submodule(parent_name)
        tensors = [tensor for linear in parent.modules() if type(linear) is torch.nn.Linear
                   for tensor in linear.parameters(recurse=False)]
        is_skipped = is_below(parent_name, self.quantization_config.skip)
        # So that at no time many dense layers are in memory.
        if parent is not model and not is_skipped and not any(tensor.is_meta for tensor in tensors):
            self._compress(parent, parent_name)

    def _compress(self, module, prefix):
        config = self.quantization_config
        prefix = prefix + "." if prefix else ""
        kept = {}
        for name, layer in module.named_modules():
            if type(layer) is not torch.nn.Linear and not is_bank(layer):
                continue
            device = next(layer.parameters()).device.type
            if f"{prefix}{name}.weight" in self._tied:
                kept[name] = "shares its weights with another layer"
            elif _device_of(prefix + name, self._device_map) == "disk":
                kept[name] = "it is on the disk"
            elif device not in (*_RUN_ON, "meta"):
                kept[name] = f"it is on the device {device}"
        skip = [*kept, *(name.removeprefix(prefix) for name in config.skip)]
        fuse = config.fuse and not is_cross_attention(prefix.rstrip("."), module)
        report = compress_model(module, config.policy, config.batch, fuse, skip)
        for layer in report.layers:
            name = "+".join(prefix + part for part in layer.name.split("+"))
            reason = kept.get(layer.name, layer.kept_dense)
            self._layers[name] = layer._replace(name=name, kept_dense=reason)

    def _finish(self, model):
        self._compress(model, "")
        self.report = Report()
        self.report.layers = list(self._layers.values())
        for module in model.modules():
            if hasattr(module, "decompress"):
                module._is_hf_initialized = True

    def postprocess_model(self, model, **kwargs):
        if not self._is_loaded:
            raise RuntimeError(f"transformers {transformers.__version__} loads models in a way "
                               "that this Snug does not know: install a newer Snug, or read the "
                               "folder with snug.torch.load_file")
        if not self._runs:
            self.remove_quantization_config(model)
        elif hasattr(model.config, "quantization_config"):
            del model.config.quantization_config  # save_pretrained writes plain folders
        return model

    def get_state_dict_and_metadata(self, model, *args, **kwargs):
        return dense_state_dict(model), {}

    def is_serializable(self, *args, **kwargs):
        return True

    @property
    def is_trainable(self):
        return not self._runs

    def _dequantize(self, model, dtype=None):
        return decompress_model(model)


class _Pack(ConversionOps):
    """What transformers calls with each linear weight in mode="run"."""

    def __init__(self, quantizer):
        self._quantizer = quantizer

    def convert(self, input_dict, *args, model=None, missing_keys=None, **kwargs):
        for name, tensor in input_dict.items():
            self._quantizer.pack(model, name, tensor[0] if isinstance(tensor, list) else tensor)
            if missing_keys is not None:
                missing_keys.discard(name)
        return {}

    @property
    def reverse_op(self):
        raise NotImplementedError


@functools.wraps(_load)
def _load_through_quantizer(model, state_dict, checkpoint_files, load_config, *args, **kwargs):
    quantizer = load_config.hf_quantizer
    if not isinstance(quantizer, SnugQuantizer):
        if not any(map(is_compressed, checkpoint_files or ())):
            return _load(model, state_dict, checkpoint_files, load_config, *args, **kwargs)
        if quantizer is not None:
            method = quantizer.quantization_config.quant_method
            raise ValueError(f"the folder is compressed, and {getattr(method, 'value', method)} "
                             "reads plain files: restore it with `snug decompress`, or show it "
                             "as plain with `snug mount`")
        # The config that was given has no mark; that of a part of a model has none.
        quantizer = SnugQuantizer(SnugConfig())
    return quantizer.load(model, state_dict, checkpoint_files, load_config, *args, **kwargs)


@functools.wraps(_load_state_dict)
def _load_dtypes(checkpoint_file, map_location="cpu", *args, **kwargs):
    if map_location != "meta" or not is_compressed(checkpoint_file):
        return _load_state_dict(checkpoint_file, map_location, *args, **kwargs)
    return {name: torch.empty(tensor.get_shape(), dtype=getattr(torch, DTYPES[tensor.get_dtype()]),
                              device="meta")
            for name, tensor in _tensors_of([checkpoint_file]).items()}


# transformers lets quantizers change tensors, but not where they come from (it asks only that of
# GGUF). So the first function asks Snug's quantizer. The second finds the dtypes of a file, if
# config.json has none. Both do as before for all other files. What the third writes is plain: it
# takes the mark out of the config, and restores compressed layers.
PreTrainedModel._load_pretrained_model = staticmethod(_load_through_quantizer)
modeling_utils.load_state_dict = _load_dtypes
PreTrainedModel.save_pretrained = as_plain(PreTrainedModel.save_pretrained)


def _is_safetensors(path):
    return os.fspath(path).endswith(".safetensors")


def _tensors_of(files, device="cpu"):
    """All tensors of checkpoint files by name; each is read and decoded when it is indexed."""
    tensors = {}
    for path in files:
        with safe_open(path, framework="pt", device=device) as file:
            tensors.update((name, file.get_slice(name)) for name in file.keys())
    return tensors


def _tied_names(model):
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {*tied, *tied.values()}


def _device_of(name, device_map):
    """Of the nearest module above that the map names; None if it names none."""
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return device_map.get(name)


def _only_device(device_map):
    """The GPU of all tensors, which then decodes them; else the CPU does."""
    devices = {torch.device(f"cuda:{device}" if isinstance(device, int) else device)
               for device in (device_map or {"": "cpu"}).values() if device != "disk"}
    only = devices.pop() if len(devices) == 1 else torch.device("cpu")
    return only if only.type == "cuda" else torch.device("cpu")


def _check_shape(name, tensor, shape):
    if tensor.shape != shape:
        raise RuntimeError(f"{name} has shape {tuple(tensor.shape)} in the folder and "
                           f"{tuple(shape)} in the model: config.json belongs to another model")
