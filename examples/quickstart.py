"""The shortest complete use of turnout: forty phones, of which four in five are available at any time, train for 100
rounds; a scheduler selects eight of them in each round, learns how long each takes, and keeps its promise to all. The
training is simulated by its duration. It needs turnout and nothing else, takes some seconds, and writes fleet.turnout
in the working directory. Run it again, and the fleet continues for another 100 rounds.

    python examples/quickstart.py
"""

import random

from turnout import Scheduler

random.seed(1)
with Scheduler.open("fleet.turnout", deadline=120.0) as scheduler:  # 8 clients per round, 15 % of the rounds for each
    for _ in range(100):
        phones = [f"phone-{n}" for n in range(40) if random.random() < 0.8]  # the clients that are available now
        for phone in scheduler.choose(phones):  # send the model to each of these clients
            seconds = (5 + int(phone[6:])) * random.uniform(0.8, 1.2)
            scheduler.report(phone, seconds)  # when its trained model has arrived
        scheduler.close_round()
    print("The promise is", scheduler.certificate().status)
