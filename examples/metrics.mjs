// What a limit does, as Prometheus and the log see it.
import { limiter } from 'sluice';
import { logLimiting, prometheus } from 'sluice/metrics';

const api = limiter({ name: 'api', limit: { bucket: { rate: '10/s', burst: 20 } } });
const metrics = prometheus([api]); // on GET /metrics: metrics.text(), as metrics.contentType
// The first refusal at once, the rest summed up. `console` itself would do as well.
const stop = logLimiting(api, { warn: (message) => console.log(message) });

for (let call = 1; call <= 50; call++) api.check('alice');
stop(); // tells what is left to tell

console.log(metrics.text());
