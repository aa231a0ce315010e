"""The trainer's side behind vLLM's own interface, WeightTransferTrainerFactory (since 0.32)."""

from dataclasses import dataclass
from typing import ClassVar, Optional

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from .trainer import Trainer
from .weight_transfer import BACKEND


@dataclass
class SnugTrainerInitInfo(TrainerInitInfo):
    """For WeightTransferTrainerFactory.trainer_init: what Trainer takes beside its client and
    tensors."""
    backend: ClassVar[str] = BACKEND

    listen: str = "127.0.0.1:0"
    address: Optional[str] = None
    keep_on: Optional[str] = None
    seconds: float = 300
    lanes: int = 0
    insecure: bool = False


class SnugTrainerEngine(TrainerWeightTransferEngine):
    init_info_cls = SnugTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        if source is None:
            raise ValueError("Snug's weight transfer needs a WeightSource")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine.trainer = Trainer(client, lambda: iter(source), init_info.listen, init_info.address,
                                 init_info.rank,
                                 [(m.name, m.dtype, m.shape) for m in source.metadata()],
                                 init_info.keep_on, init_info.seconds, init_info.lanes,
                                 init_info.insecure)
        return engine

    def send_weights(self):
        return self.trainer.send_weights()

    def shutdown(self):
        self.trainer.close()
