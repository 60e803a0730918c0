import { poolOutageTest } from '../../../test/support/pool-outage.ts';
import { etcdStage, natsStage } from '../../../test/support/pool-stages.ts';
import { etcdServer, natsServer } from '../../../test/support/services.ts';

if (etcdServer() !== undefined) poolOutageTest('etcd', etcdStage);
if (natsServer() !== undefined) poolOutageTest('NATS', natsStage);
