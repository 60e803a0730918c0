import { setTimeout as sleep } from 'node:timers/promises';
import { judge, startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';

const server = await startRedis();
for (const [every, reserve] of [
  [20, 0],
  [100, 0],
  [20, 16],
  [100, 16],
]) {
  server.cli('FLUSHALL');
  server.cli('CONFIG', 'RESETSTAT');
  const fleet = await startFleet({
    port: server.port,
    limit: { spacing: { every, reserve } },
    workers: 8,
  });
  await sleep(6000);
  const end = await fleet.stop();
  console.log(
    every,
    reserve,
    judge(fleet.grants, every),
    end,
    /cmdstat_evalsha:calls=(\d+)/.exec(server.cli('INFO', 'commandstats'))[1],
  );
}
await server.stop();
