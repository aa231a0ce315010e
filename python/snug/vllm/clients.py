"""How a trainer calls the engines that it updates: the methods of vLLM's VLLMWeightSyncClient."""

import inspect
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor


class LLMClient:
    """Drives a vllm.LLM in this process."""

    def __init__(self, llm):
        self._llm = llm
        parameters = inspect.signature(llm.start_weight_update).parameters
        # vLLM 0.24 prepares a reload of all layers unless it is told not to.
        self._in_place = ({"is_checkpoint_format": False}
                          if "is_checkpoint_format" in parameters else {})

    def init_weight_transfer_engine(self, init_info):
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self):
        self._llm.start_weight_update(**self._in_place)

    def update_weights(self, update_info):
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version=None):
        self._llm.finish_weight_update()


class HTTPClient:
    """Drives servers of vLLM, which must run with VLLM_SERVER_DEV_MODE=1."""

    def __init__(self, *urls, seconds=600):
        self._urls, self._seconds = [url.rstrip("/") for url in urls], seconds

    def init_weight_transfer_engine(self, init_info):
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self):
        self._post("start_weight_update", {"is_checkpoint_format": False})

    def update_weights(self, update_info):
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version=None):
        self._post("finish_weight_update", {})

    def _post(self, path, body):
        with ThreadPoolExecutor(len(self._urls)) as threads:
            for outcome in [threads.submit(self._post_to, url, path, body) for url in self._urls]:
                outcome.result()

    def _post_to(self, url, path, body):
        request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=self._seconds).close()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{url}/{path}: {error.read(4096).decode(errors='replace')}") \
                from None
