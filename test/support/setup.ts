/** Runs once before all tests: finds or installs the servers they need, so that no two tests try at once. */

import { hasRuntimes } from './runtimes.ts';
import {
  caddyServer,
  chromiumBrowser,
  etcdServer,
  haproxyServer,
  hasNamespaces,
  hasShellTools,
  natsServer,
  nginxServer,
  redisServer,
  shellcheck,
} from './services.ts';

export default function setUp(): void {
  redisServer();
  nginxServer();
  haproxyServer();
  caddyServer();
  hasShellTools();
  natsServer();
  etcdServer();
  hasNamespaces();
  chromiumBrowser();
  shellcheck();
  hasRuntimes();
}
