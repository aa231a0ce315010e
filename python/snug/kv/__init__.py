"""Pages of a KV cache from the worker that filled them to the worker that goes on with them.

The prefill worker holds the pages of a finished request (held.py) and serves them (server.py);
the decode worker pulls them into pages of its own (client.py) over snug.wire, or over a GPU link
where both are on one host. No engine is needed here: snug.vllm has vLLM's door to it.
"""
