"""An HTTP worker in a process of its own, to be killed: it prints up to MOST messages and settles none.

    lone_http_worker.py URL QUEUE MOST LEASE_MS
"""

import sys
import time

import httpx


def main():
    url, queue, most, lease_ms = sys.argv[1:]
    parameters = {"max": most, "lease_ms": lease_ms, "wait_ms": 10_000}
    answer = httpx.post(f"{url}/v1/queues/{queue}/receive", params=parameters, timeout=30, trust_env=False)
    for message in answer.json()["messages"]:
        print(message["body"], flush=True)
    while True:
        time.sleep(60)


main()
