// node-redis with its defaults: connects, and calls one by one, many at once and in a transaction.
const assert = require('node:assert');
const { createClient } = require('redis');

(async () => {
  const client = createClient({ url: `redis://127.0.0.1:${process.argv[2]}` });
  client.on('error', (error) => {
    throw error;
  });
  await client.connect();
  const call = (key, ...rest) => client.sendCommand(['CL.THROTTLE', key, ...rest]);
  assert.deepStrictEqual(await call('node', '15', '30', '60'), [0, 16, 15, -1, 2]);
  const replies = await Promise.all([1, 2, 3].map(() => call('node-many', '1', '1', '60')));
  assert.deepStrictEqual(replies.map((reply) => reply[0]), [0, 0, 1]);
  const transaction = client.multi();
  for (let calls = 0; calls < 3; calls += 1) {
    transaction.addCommand(['CL.THROTTLE', 'node-multi', '1', '1', '60']);
  }
  const queued = await transaction.exec();
  assert.deepStrictEqual(queued.map((reply) => reply[0]), [0, 0, 1]);
  await assert.rejects(call('node', 'x', '30', '60'), /Couldn't parse as integer: x/);
  await client.close();
  console.log('done');
})();
