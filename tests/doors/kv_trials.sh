#!/usr/bin/env bash
# kv_trials.sh PYTHON [LMCACHE_PYTHON [SGLANG_PYTHON]]: the doors for KV caches with real engines on
# the CPU. PYTHON has vLLM for CPUs, the others have LMCache and SGLang. SNUG_TEST_MODEL names a BF16
# model of at least 4096 tokens; without it, one with random weights is made. SNUG_TEST_KV names a
# safetensors file with KV caches k.* and v.* for LMCache; without it, that part makes its own.
set -euo pipefail
python=$1 lmcache=${2:-} sglang=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_TARGET_DEVICE=cpu
export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
export KV_ENGINE_OPTIONS='{"max_model_len": 2048, "enable_prefix_caching": false}'
model=${SNUG_TEST_MODEL:-}
if [[ -z $model ]]; then
  model=$folder/model
  mkdir "$model"
  cat > "$model/config.json" <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
 "intermediate_size": 640, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
 "num_hidden_layers": 4, "vocab_size": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": true,
 "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1}
END
  export KV_ENGINE_OPTIONS='{"max_model_len": 2048, "enable_prefix_caching": false,
    "load_format": "dummy", "skip_tokenizer_init": true, "seed": 0}'
  export SGLANG_ENGINE_OPTIONS='{"load_format": "dummy"}'
fi
logs() { echo "the logs:"; tail -n 30 "$folder"/*.log; exit 1; }

echo "prefill and decode in vLLM"
"$python" "$here/kv_vllm_trial.py" "$model" "$folder" || logs
echo "offload in vLLM"
for codec in fixed entropy; do
  "$python" "$here/kv_offload_trial.py" "$model" 40 $codec 2> "$folder/offload.log" \
    | grep "^ok" || logs
done
echo "files in vLLM"
"$python" "$here/kv_files_trial.py" 2> "$folder/files.log" | grep -E "^(ok|FAIL)" || logs
if [[ -n $lmcache ]]; then
  echo "LMCache"
  "$lmcache" "$here/lmcache_trial.py" ${SNUG_TEST_KV:+"$SNUG_TEST_KV"} 2> "$folder/lmcache.log" \
    | grep -E "^(ok|FAIL)" || logs
else
  echo "LMCache was not tried: name a Python that has it"
fi
if [[ -n $sglang ]]; then
  echo "HiCache"
  "$sglang" "$here/hicache_trial.py" 2> "$folder/hicache.log" | grep -E "^(ok|FAIL)" || logs
  if "$sglang" -c "import mooncake.engine" 2> "$folder/mooncake.log"; then
    echo "prefill and decode in SGLang"
    "$sglang" "$here/sglang_pd_trial.py" "$model" "$folder" || logs
  else
    echo "SGLang's prefill and decode were not tried: they need mooncake-transfer-engine-non-cuda" \
         "and libibverbs1"
  fi
else
  echo "SGLang was not tried: name a Python that has it"
fi
