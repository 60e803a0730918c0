// Prometheus metrics and log lines of a limit.
import { limiter } from 'sluice';
import { logLimiting, prometheus } from 'sluice/metrics';

const api = limiter({ name: 'api', limit: { bucket: { rate: '10/s', burst: 20 } } });
const metrics = prometheus([api]); // on GET /metrics: metrics.text(), as metrics.contentType
// Logs the first refusal at once and the rest as sums. `console` is a valid logger too.
const stop = logLimiting(api, { warn: (message) => console.log(message) });

for (let call = 1; call <= 50; call++) api.check('alice');
stop(); // logs what is pending

console.log(metrics.text());
