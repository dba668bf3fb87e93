#!/usr/bin/env bash
# The same worker over HTTP with curl and jq. MAINSTEM_URL is the base URL of the HTTP API, QUEUE the queue.
set -euo pipefail
queue="${MAINSTEM_URL:-http://127.0.0.1:8080}/v1/queues/${QUEUE:-images}"
here=$(dirname "$0")

# settle DISPOSITION RECEIPT: retried while the broker is down or busy; receipts stay valid over a restart. Status 409 is
# not an error: the lease has ended and another worker has the job. After any other failure the job is redelivered.
settle() {
    local status try
    for try in {1..60}; do
        status=$(curl -sS --max-time 10 -o /dev/null -w '%{http_code}' "$queue/$1" \
            -H content-type:application/json -d "{\"receipts\": [\"$2\"]}") || status=000
        case "$status" in
            200) return ;;
            409) echo "job $2: too late"; return ;;
            000 | 408 | 429 | 5??) sleep 1 ;;
            *) break ;;
        esac
    done
    echo "job $2: $1 failed with status $status after $try attempts" >&2
}

echo "working on $queue"
while true; do
    # Waits up to 20 s for a job, and leases it for 60 s.
    if ! answer=$(curl -sS --max-time 30 --fail-with-body -X POST "$queue/receive?wait_ms=20000&lease_ms=60000"); then
        echo "$answer" >&2
        sleep 1
        continue
    fi
    receipt=$(jq -r '.messages[0].receipt // empty' <<< "$answer")
    [ -n "$receipt" ] || continue
    status=0
    jq -j '.messages[0].body' <<< "$answer" | python3 "$here/resize.py" || status=$?
    case "$status" in
        0) echo "job $receipt: done"; settle ack "$receipt" ;;
        65) echo "job $receipt: rejected"; settle reject "$receipt" ;;
        *) echo "job $receipt: failed"; settle nack "$receipt" ;;
    esac
done
