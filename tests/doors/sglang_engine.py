"""One SGLang engine on a CPU for sglang_pd_trial.py: answers lines of JSON on its standard output.

    python sglang_engine.py MODEL null|prefill|decode OPTIONS
"""

import asyncio
import json
import os
import sys

HOST = "127.0.0.1"


async def run(llm, job):
    if job.get("abort"):
        llm.tokenizer_manager.abort_request(abort_all=True)
        return {}
    extra = {} if job["room"] is None else {
        "bootstrap_host": HOST, "bootstrap_port": job["port"], "bootstrap_room": job["room"]}
    try:
        out = await llm.async_generate(input_ids=job["prompt"], sampling_params={
            "temperature": 0, "max_new_tokens": job["count"], "ignore_eos": True}, **extra)
    except Exception as error:  # how SGLang tells that a request has failed
        return {"error": str(error)}
    reason = out["meta_info"]["finish_reason"]
    if reason["type"] == "abort":
        return {"error": str(reason.get("message"))}
    return {"tokens": out["output_ids"]}


def main():
    model, role, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever SGLang prints is log
    import sglang
    llm = sglang.Engine(model_path=model, device="cpu", attention_backend="torch_native",
                        sampling_backend="pytorch", grammar_backend="none",
                        disable_overlap_schedule=True, disable_radix_cache=True, log_level="info",
                        skip_tokenizer_init=True, mem_fraction_static=0.5, **options)

    async def answer(job):
        result = await run(llm, job)
        print(json.dumps({"id": job["id"], **result}), file=answers, flush=True)

    async def serve():
        loop, tasks = asyncio.get_running_loop(), set()
        print(json.dumps("ready"), file=answers, flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            task = asyncio.create_task(answer(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    llm.loop.run_until_complete(serve())
    llm.shutdown()


if __name__ == "__main__":
    main()
