"""redis-py with its defaults: connects, and calls one by one, in a pipeline and in a transaction."""

import sys

import redis

client = redis.Redis(port=int(sys.argv[1]))
assert client.ping() is True
assert client.execute_command("CL.THROTTLE", "py", 15, 30, 60) == [0, 16, 15, -1, 2]
pipeline = client.pipeline(transaction=False)
for _ in range(3):
    pipeline.execute_command("CL.THROTTLE", "py-pipeline", 1, 1, 60)
assert [reply[0] for reply in pipeline.execute()] == [0, 0, 1]
# The default pipeline is a transaction.
pipeline = client.pipeline()
for _ in range(3):
    pipeline.execute_command("CL.THROTTLE", "py-transaction", 1, 1, 60)
assert [reply[0] for reply in pipeline.execute()] == [0, 0, 1]
with client.pipeline() as pipeline:
    pipeline.watch("py-watched")
    pipeline.multi()
    pipeline.execute_command("CL.THROTTLE", "py-watched", 15, 30, 60)
    assert pipeline.execute() == [[0, 16, 15, -1, 2]]
# A call that cannot be queued: none is charged.
pipeline = client.pipeline()
pipeline.execute_command("CL.THROTTLE", "py-aborted", 15, 30, 60)
pipeline.get("key")
try:
    pipeline.execute()
except redis.ResponseError as error:
    assert "unknown command 'GET'" in str(error), error
else:
    raise AssertionError("GET was answered")
assert client.execute_command("CL.THROTTLE", "py-aborted", 15, 30, 60, 0) == [0, 16, 16, -1, 0]
assert client.execute_command("TOLLGATE.CHECK", "default", 1, "user", "u") == [0, -1, -1, -1, -1, None]
try:
    client.execute_command("CL.THROTTLE", "py", "x", 30, 60)
except redis.ResponseError as error:
    assert str(error) == "Cell error: Store error: Couldn't parse as integer: x", error
else:
    raise AssertionError("nonsense was answered")
old = redis.Redis(port=int(sys.argv[1]), protocol=2, client_name="old")
assert old.execute_command("CL.THROTTLE", "py-2", 15, 30, 60) == [0, 16, 15, -1, 2]
from_url = redis.from_url(f"redis://127.0.0.1:{sys.argv[1]}/0", health_check_interval=1, decode_responses=True)
assert from_url.execute_command("CL.THROTTLE", "py-url", 15, 30, 60) == [0, 16, 15, -1, 2]
assert from_url.info()["redis_mode"] == "standalone"
print("done")
