import { formatListenAddress } from '../core/listen-address.ts';
import { type Config, listenAddressesOf } from './config/read.ts';
import type { PatternTable } from './keys/pattern-table.ts';

/** Built by name, field by field: a secret that is added to the configuration later does not appear by itself. */
export function describeConfig(config: Config, file: string | undefined): unknown {
  const { admin, resp, http, bounds, overload, workers, snapshot, backends, log, ready, keys } =
    config;
  return {
    file,
    listen: Object.fromEntries(
      Object.entries(listenAddressesOf(config)).map(([protocol, addresses]) => [
        protocol,
        addresses.map((address) => ({
          at: formatListenAddress(address),
          tls: address.kind === 'tcp' && address.tls !== undefined,
        })),
      ]),
    ),
    admin: { token: hidden(admin.token) },
    resp: { password: hidden(resp.password) },
    http: {
      key: http.header === undefined ? 'ip' : { header: http.header },
      planHeader: http.planHeader,
      prefix: http.prefix,
      trustProxy: http.clientOf !== undefined,
      fastPath: http.fastPath,
      allowCrossSite: http.allowCrossSite,
    },
    bounds: finite(bounds),
    overload: finite(overload),
    workers,
    snapshot: snapshot && finite(snapshot),
    backends: [...backends.keys()],
    log: finite({
      level: log.level,
      format: log.format,
      denialsMs: log.denialsMs,
      denialKeys: log.denialKeys,
    }),
    ready: { backends: ready.needsBackends ? 'require' : 'ignore' },
    keys,
    unmatched: config.unmatched,
    allow: countOf(config.allow),
    deny: countOf(config.deny),
    plannedKeys: config.planOf.size,
    limits: config.limits.map((limit) => ({
      name: limit.name,
      ...limit.rule,
      match: limit.match.slice(0, MAX_SHOWN_PATTERNS).map(({ text }) => text),
      ...(limit.match.length > MAX_SHOWN_PATTERNS && { patterns: limit.match.length }),
      per: limit.per,
      always: limit.always,
      shadow: limit.shadow,
      expose: limit.expose,
      overload: limit.overload,
      allow: countOf(limit.allow),
      deny: countOf(limit.deny),
      overrides: limit.overrides.length,
      plans: Object.fromEntries([...limit.plans].map(([plan, rule]) => [plan, rule.limit])),
      ...Object.fromEntries(limit.backends.map(({ name, view }) => [name, view])),
    })),
  };
}

/** Lists may be keys of clients, and thousands of them. */
const countOf = (patterns: PatternTable): string => `${patterns.length} patterns`;

const MAX_SHOWN_PATTERNS = 20;

const hidden = (secret: string | undefined): string =>
  secret === undefined ? 'not set' : 'set (hidden)';

/** JSON has no Infinity. */
const finite = (values: object): object =>
  Object.fromEntries(
    Object.entries(values).map(([name, value]) => [name, value === Infinity ? 'no bound' : value]),
  );
