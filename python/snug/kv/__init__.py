"""Pages of a KV cache from the worker that filled them to the worker that goes on with them.

Over snug.wire, or over a GPU link where both are on one host. Who connects asks (peer.py), who
listens answers (server.py). Two ways:

- The prefill worker holds the pages of a finished request (held.py) and serves them (server.py);
  the decode worker pulls them into pages of its own (client.py). vLLM's door, snug.vllm, does so.
- The decode worker says which items of its memory (areas.py) a request awaits (inbox.py); the
  prefill worker pushes pages there (push.py). SGLang's door, snug.sglang, does so.
"""
