// Which limit would have been right for the traffic of a log, and what would it have done? No server is involved.
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const sluice = (...words) =>
  execFileSync(process.execPath, [here('../dist/bin/sluice.js'), ...words], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'], // notes about the log go to standard error
  });

// A token bucket that throttles at most 5 % of the clients.
const log = here('replay/access.log');
const { suggestion, calls, denied, keys, deniedKeys, top } = JSON.parse(
  sluice('replay', log, '--suggest', '5%', '--json'),
);
console.log(`suggested: bucket ${suggestion.rate} burst ${suggestion.burst}`);
console.log(`denies ${denied} of ${calls} calls, and ${deniedKeys} of ${keys} clients`);
console.log(`most denied: ${top[0].key}, ${top[0].denied} of ${top[0].calls} calls`);

// What would a change of the configuration flip? In CI, --max-newly-denied makes it fail.
const [before, after] = ['replay/old.yaml', 'replay/new.yaml'].map(here);
const plan = JSON.parse(sluice('plan', before, after, log, '--key', 'ip:{ip}', '--json'));
console.log(`the new configuration denies ${plan.newlyDenied} calls that the old one allows`);

if (deniedKeys > keys * 0.05 || plan.newlyDeniedKeys !== 1) process.exitCode = 1;
