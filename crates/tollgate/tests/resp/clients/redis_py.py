"""redis-py with its defaults: connects, and calls one by one and in a pipeline."""

import sys

import redis

client = redis.Redis(port=int(sys.argv[1]))
assert client.ping() is True
assert client.execute_command("CL.THROTTLE", "py", 15, 30, 60) == [0, 16, 15, -1, 2]
pipeline = client.pipeline(transaction=False)
for _ in range(3):
    pipeline.execute_command("CL.THROTTLE", "py-pipeline", 1, 1, 60)
assert [reply[0] for reply in pipeline.execute()] == [0, 0, 1]
assert client.execute_command("TOLLGATE.CHECK", "default", 1, "user", "u") == [0, -1, -1, -1, -1, None]
try:
    client.execute_command("CL.THROTTLE", "py", "x", 30, 60)
except redis.ResponseError as error:
    assert str(error) == "Cell error: Store error: Couldn't parse as integer: x", error
else:
    raise AssertionError("nonsense was answered")
old = redis.Redis(port=int(sys.argv[1]), protocol=2, client_name="old")
assert old.execute_command("CL.THROTTLE", "py-2", 15, 30, 60) == [0, 16, 15, -1, 2]
print("done")
