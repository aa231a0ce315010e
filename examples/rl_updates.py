"""Trains a model and updates vLLM after every step, by deltas.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "snug"}'
    python3 examples/rl_updates.py MODEL --server http://localhost:8000

Without --server, an engine runs in this process. A real trainer computes its loss from what the
engine generates; here the loss is that of fixed tokens.
"""

import argparse

import torch
import transformers

import snug.transformers  # noqa: F401: reads MODEL if it is compressed
from snug.vllm.trainer import HTTPClient, LLMClient, Trainer


def engine_here(folder):
    from snug.vllm import weight_transfer
    weight_transfer.register()
    from vllm import LLM
    return LLM(model=folder, weight_transfer_config={"backend": "snug"}, max_model_len=512,
               enforce_eager=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model folder that the engine serves, too")
    parser.add_argument("--server", help="URL of vLLM; SNUG_TOKEN is set there and here")
    parser.add_argument("--listen", default="127.0.0.1:0", help="where its workers connect to")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()

    device = "cuda" if arguments.server and torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model,
                                                              dtype=torch.bfloat16).to(device)
    # Steps are too small for BF16: FP32 masters take them, and the model gets the rounded values.
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-6)
    tokens = torch.arange(5, 133, device=device).view(1, -1)

    llm = None if arguments.server else engine_here(arguments.model)
    client = HTTPClient(arguments.server) if arguments.server else LLMClient(llm)
    trainer = Trainer(client, model.named_parameters, listen=arguments.listen)
    for step in range(arguments.steps):
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        for master, parameter in zip(masters, model.parameters()):
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters()):
                parameter.copy_(master)
        sent = trainer.send_weights()
        if llm is not None:
            llm.reset_prefix_cache()
        print(f"step {step}: loss {loss.item():.4f}, {sent.num_deltas} deltas, {sent.num_whole} "
              f"whole tensors, {100 * sent.wire_bytes / sent.raw_bytes:.2f} % of the weights in "
              f"{sent.seconds:.2f} s")
    trainer.close()


if __name__ == "__main__":
    main()
