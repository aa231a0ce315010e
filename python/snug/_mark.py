"""The mark of a compressed folder: `quantization_config` in its config.json."""

FORMAT = 1  # src/store/config_mark.cpp writes it


def is_marked(config):
    """Whether a config says that the files beside it are compressed by Snug."""
    mark = getattr(config, "quantization_config", None)
    method = mark.get("quant_method") if isinstance(mark, dict) else getattr(mark, "quant_method",
                                                                              None)
    return method == "snug"


def check_format(version):
    if version != FORMAT:
        raise ValueError(f"config.json names version {version!r} of Snug's format, this is a "
                         f"reader of version {FORMAT}: install a newer snug-llm")
