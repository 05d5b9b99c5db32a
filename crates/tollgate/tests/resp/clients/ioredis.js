// ioredis with its defaults: connects, and calls one by one, in a pipeline and in a transaction.
const assert = require('node:assert');
const { Redis } = require('ioredis');

(async () => {
  const client = new Redis(Number(process.argv[2]));
  const call = (key, ...rest) => client.call('CL.THROTTLE', key, ...rest);
  assert.deepStrictEqual(await call('io', 15, 30, 60), [0, 16, 15, -1, 2]);
  const pipeline = client.pipeline();
  for (let calls = 0; calls < 3; calls += 1) {
    pipeline.call('CL.THROTTLE', 'io-pipeline', 1, 1, 60);
  }
  const replies = await pipeline.exec();
  assert.deepStrictEqual(replies.map(([error, reply]) => [error, reply[0]]), [[null, 0], [null, 0], [null, 1]]);
  const transaction = client.multi();
  for (let calls = 0; calls < 3; calls += 1) {
    transaction.call('CL.THROTTLE', 'io-multi', 1, 1, 60);
  }
  const queued = await transaction.exec();
  assert.deepStrictEqual(queued.map(([error, reply]) => [error, reply[0]]), [[null, 0], [null, 0], [null, 1]]);
  await assert.rejects(call('io', 'x', 30, 60), /Couldn't parse as integer: x/);
  await client.quit();
  console.log('done');
})();
