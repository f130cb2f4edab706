#!/usr/bin/env bash
# Runs workflows against llmock's failures in every wire format that both speak, and prints its verdict of us.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
export WREN_ADDRESS=unix:$dir/wrend.sock
ended() { kill "${wrend:-}" "${llmock:-}" 2> /dev/null || true; }
trap ended EXIT

target/llm/bin/llmock serve --port 8080 > "$dir/llmock.log" 2>&1 & llmock=$!
cat > "$dir/config.yaml" <<'YAML'
providers:
  chat: {base_url: "http://127.0.0.1:8080/v1", first_byte_timeout_ms: 3000, idle_timeout_ms: 900}
  responses: {kind: responses, base_url: "http://127.0.0.1:8080/v1", first_byte_timeout_ms: 3000, idle_timeout_ms: 900}
  messages: {kind: anthropic, base_url: "http://127.0.0.1:8080/anthropic", first_byte_timeout_ms: 3000, idle_timeout_ms: 900}
  google: {kind: gemini, base_url: "http://127.0.0.1:8080/gemini/v1beta", first_byte_timeout_ms: 3000, idle_timeout_ms: 900}
prices:
  chat: {m: &price {input: "1", output: "2"}}
  responses: {m: *price}
  messages: {m: *price}
  google: {m: *price}
YAML
target/release/wrend --config "$dir/config.yaml" --data-dir "$dir/data" --listen "$WREN_ADDRESS" > "$dir/wrend.log" 2>&1 & wrend=$!
until curl -s -o /dev/null 127.0.0.1:8080/v1/models && [ -S "$dir/wrend.sock" ]; do sleep 0.2; done

while read -r fault; do
  for provider in chat responses messages google; do
    curl -sf 127.0.0.1:8080/_llmock/scenario -d "{\"behaviors\": [$fault]}" > /dev/null
    code=0
    target/release/wrenctl run -f workflows/log-triage-local.yaml --set-model local=$provider/m -i question="$provider: $fault" \
      --progress none > "$dir/out" 2> "$dir/err" < /dev/null || code=$?
    echo "exit $code $provider $fault"
  done
done <<'FAULTS'
{"type": "fail", "status": 429, "retry_after": 1, "times": 2}
{"type": "fail", "status": 500, "times": 3}
{"type": "fail", "status": 503, "times": 3}
{"type": "fail", "status": 401}
{"type": "delay", "seconds": 5}
{"type": "slow_first_token", "seconds": 5}
{"type": "stream_fault", "kind": "disconnect", "after_chunks": 2}
{"type": "stream_fault", "kind": "truncate", "after_chunks": 2}
{"type": "stream_fault", "kind": "malformed", "after_chunks": 2}
{"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 10}
{"type": "tool_fault", "kind": "malformed_arguments"}
{"type": "tool_fault", "kind": "unknown_tool"}
FAULTS
target/llm/bin/llmock report --url http://127.0.0.1:8080
