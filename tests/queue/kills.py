"""Kills a broker while clients send to its queues and work on them.

`MAINSTEM_KILLS` is the number of kills (4), `MAINSTEM_SEED` determines their times (1).
"""

import os
import random
import time

from operations import eventually

KILLS = int(os.environ.get("MAINSTEM_KILLS", "4"))
SEED = int(os.environ.get("MAINSTEM_SEED", "1"))
LIFE_S = (0.2, 1.0)
SETTLE_S = 60
TIMEOUT_S = 60 + 30 * KILLS


def kill_under(broker_process, senders):
    """Kills a broker repeatedly under load; stops the senders and returns the confirmed texts."""
    moments = random.Random(SEED)

    def confirmed_in_all():
        return sum(len(sender.confirmed) for sender in senders)

    for _ in range(KILLS):
        enough = confirmed_in_all() + 21
        eventually(lambda: confirmed_in_all() >= enough, "messages are confirmed between two kills", SETTLE_S)
        time.sleep(moments.uniform(*LIFE_S))
        broker_process.kill()
        broker_process.start()
    time.sleep(moments.uniform(*LIFE_S))
    for sender in senders:
        sender.stop()
    confirmed = {text for sender in senders for text in sender.confirmed}
    assert len(confirmed) > 20 * KILLS
    return confirmed
