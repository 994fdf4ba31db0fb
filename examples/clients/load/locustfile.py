"""The surge of examples/surge for Locust: users who send the next request 0.1 to 0.3 s after each
answer. After a 429, a user waits for Retry-After.

    pip install -r examples/clients/load/requirements.txt
    locust -f examples/clients/load/locustfile.py --headless -H http://localhost:8080 -u 2000 -r 1000 -t 14s
"""

import itertools
import time

from locust import FastHttpUser, between, task

numbers = itertools.count(1)


class Rider(FastHttpUser):
    wait_time = between(0.1, 0.3)

    def on_start(self):
        # Each user has an identity of its own.
        self.identity = {"X-User-Id": f"surge-{next(numbers)}"}

    def send(self, method, path):
        with self.client.request(method, path, headers=self.identity, catch_response=True) as answer:
            if answer.status_code != 429:
                return
            # A denial is an answer that the limits are there for, so it is no failure.
            answer.success()
            # Locust's table has denials in a row of their own.
            self.environment.events.request.fire(
                request_type="429", name=path, response_time=answer.request_meta["response_time"],
                response_length=0, exception=None, context={},
            )
            time.sleep(float(answer.headers.get("Retry-After", "1")))

    @task(5)
    def ride(self):
        self.send("POST", "/api/rides/request")

    @task(2)
    def fare(self):
        self.send("GET", "/api/fares/estimate")

    @task(1)
    def drivers(self):
        self.send("GET", "/api/drivers/nearby")
